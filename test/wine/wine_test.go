package wine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/hack/build"
	"kubelet-ca-courier/node"
	"kubelet-ca-courier/test/need"
)

// root is the module's root directory.
const root = "../.."

// patience is how long the program waits for a busy file where the test wants it to give up.
const patience = "200ms"

// machine is a Windows of its own: a Wine prefix with the programs under test.
type machine struct {
	loader string // Wine's
	prefix string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{loader: need.Wine(t), prefix: filepath.Join(scratch(t), "prefix")}
	need.Tool(t, "x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64")
	if output, err := exec.Command(filepath.Join(root, "hack/wine/prefix.sh"), m.prefix).CombinedOutput(); err != nil {
		t.Fatalf("set up Wine: %v: %s", err, output)
	}
	m.server(t, "-p60") // keeps the server for a minute, so that not every program starts a Windows of its own
	t.Cleanup(m.end)
	return m
}

// server tells Wine's server something.
func (m *machine) server(t *testing.T, arguments ...string) {
	t.Helper()
	command := exec.Command(need.Tool(t, "wineserver", "wine64"), arguments...)
	command.Env = m.environment()
	if err := command.Run(); err != nil { // its output is not kept: the server that it starts would hold the pipe
		t.Errorf("wineserver %v: %v", arguments, err)
	}
}

// end ends the server. That it is gone already, as it is a minute after the last program, is all the same.
func (m *machine) end() {
	command := exec.Command("wineserver", "-k", "-w")
	command.Env = m.environment()
	_ = command.Run()
}

// scratch returns a temporary directory, in memory where there is such a file system: thousands of flushes to a busy disk
// take minutes.
func scratch(t *testing.T) string {
	t.Helper()
	const memory = "/dev/shm"
	if entry, err := os.Stat(memory); err != nil || !entry.IsDir() {
		return t.TempDir()
	}
	directory, err := os.MkdirTemp(memory, "wine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	return directory
}

func (m *machine) environment() []string {
	return append(os.Environ(), "WINEPREFIX="+m.prefix, "WINEDEBUG=-all", "DISPLAY=")
}

// disk returns the path on Linux of a path on the machine's C:.
func (m *machine) disk(path string) string {
	return filepath.Join(m.prefix, "drive_c", strings.ReplaceAll(strings.TrimPrefix(path, `C:\`), `\`, "/"))
}

// write puts a file on the machine's C:.
func (m *machine) write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.disk(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.disk(path), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// command returns a Windows program that is ready to run.
func (m *machine) command(program string, arguments ...string) *exec.Cmd {
	command := exec.Command(m.loader, append([]string{program}, arguments...)...)
	command.Env = m.environment()
	command.WaitDelay = 2 * time.Second // what Wine starts beside it holds its output open for a minute
	return command
}

// courier compiles the program that ships.
func courier(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), node.Program)
	if err := build.Program(context.Background(), root, "courier-node", "windows", "amd64", program); err != nil {
		t.Fatal(err)
	}
	return program
}

// helper compiles a program of this directory for Windows.
func helper(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name+".exe")
	command := exec.Command("go", "build", "-o", program, "./"+name)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=windows", "GOARCH=amd64")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", name, err, output)
	}
	return program
}

// run runs the landing and returns its result, which must agree with its exit code.
func run(t *testing.T, command *exec.Cmd) node.Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatal(err)
	}
	var result node.Result
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
		t.Fatalf("%v: standard output %q, standard error %q", err, stdout.String(), stderr.String())
	}
	if code := command.ProcessState.ExitCode(); code != int(result.Code) {
		t.Errorf("exit code %d, but the result says %d", code, result.Code)
	}
	return result
}

// background is a Windows program that runs until it is released.
type background struct {
	lines   *bufio.Scanner
	release func()
}

// start starts a program that prints lines and ends when its standard input does.
func (m *machine) start(t *testing.T, program string, arguments ...string) *background {
	t.Helper()
	command := m.command(program, arguments...)
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	released := false
	release := func() {
		if released {
			return
		}
		released = true
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		_ = command.Wait()
	}
	t.Cleanup(release)
	return &background{lines: bufio.NewScanner(stdout), release: release}
}

// next returns the next line that the program prints.
func (b *background) next(t *testing.T) string {
	t.Helper()
	if !b.lines.Scan() {
		t.Fatalf("the program ended: %v", b.lines.Err())
	}
	return strings.TrimSpace(b.lines.Text())
}

func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s holds %d other bytes", path, len(got))
	}
}

// wantAlone asserts that nothing lies beside the file.
func wantAlone(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("beside the file: %v", entries)
	}
}

func wantResult(t *testing.T, got node.Result, outcome node.Outcome, code node.ExitCode) {
	t.Helper()
	if got.Outcome != outcome || got.Code != code {
		t.Fatalf("got %s with exit code %d, want %s with %d: %s", got.Outcome, got.Code, outcome, code, got.Line(0))
	}
}
