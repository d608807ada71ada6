package interrupt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
	"kubelet-ca-courier/test/need"
)

// role, in its environment, makes this test binary the one that is interrupted: it says how that gets its cluster.
const role = "COURIER_TO_BE_INTERRUPTED"

// mark is the environment variable that names the cluster to each of its processes (hack/cluster/process).
const mark = "COURIER_LOCAL_CLUSTER="

// plan has a control plane and nothing else.
var plan = lab.Plan{Signers: []string{"first"}}

var suite = labtest.Suite{Plan: plan}

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestAnInterruptedTestBinaryLeavesNothingOfItsCluster(t *testing.T) {
	if as := os.Getenv(role); as != "" {
		waitToBeInterrupted(t, as)
	}
	need.ControlPlane(t)
	for _, c := range []struct {
		name, as string
		signal   syscall.Signal
		begun    func(*binary) error
	}{
		{"by Ctrl-C, while the cluster of a suite is up", "suite", syscall.SIGINT, (*binary).up},
		{"by SIGTERM, while the cluster of a test is up", "test", syscall.SIGTERM, (*binary).up},
		{"by Ctrl-C, while a cluster is being brought up", "suite", syscall.SIGINT, (*binary).comingUp},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := begin(t, c.as)
			labtest.Eventually(t, "the cluster has begun", func(context.Context) error { return c.begun(b) })
			if err := b.cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			<-b.ended
			if got, want := b.cmd.ProcessState.ExitCode(), 128+int(c.signal); got != want {
				t.Errorf("it ends with status %d, want %d; it said:\n%s", got, want, b.said())
			}
			if left := b.processes(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
			files, err := os.ReadDir(b.temporary)
			if err != nil || len(files) > 0 {
				t.Errorf("files are left: %v %v", files, err)
			}
		})
	}
}

// ready is what the interrupted test binary says once its cluster is up.
const ready = "the cluster is up"

// waitToBeInterrupted brings up a cluster and never returns.
func waitToBeInterrupted(t *testing.T, as string) {
	t.Helper()
	if as == "suite" {
		suite.Lab(t)
	} else {
		labtest.New(t, plan)
	}
	_, _ = fmt.Fprintln(os.Stdout, ready) // whoever interrupts it waits for this
	<-make(chan struct{})
}

// binary is this test binary once more.
type binary struct {
	cmd       *exec.Cmd
	ended     chan struct{}
	temporary string
	output    string
}

// begin starts the test binary. Whatever becomes of the test, none of its processes outlives it.
func begin(t *testing.T, as string) *binary {
	t.Helper()
	dir := t.TempDir()
	b := &binary{ended: make(chan struct{}), temporary: filepath.Join(dir, "tmp"), output: filepath.Join(dir, "output")}
	if err := os.Mkdir(b.temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	output := labtest.Must[*os.File](t)(os.Create(b.output))
	defer func() { _ = output.Close() }() // the other process has it
	b.cmd = exec.Command(os.Args[0], "-test.run", "^TestAnInterruptedTestBinaryLeavesNothingOfItsCluster$")
	b.cmd.Env = append(os.Environ(), role+"="+as, "TMPDIR="+b.temporary)
	b.cmd.Stdout, b.cmd.Stderr = output, output
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = b.cmd.Wait() // its exit status is looked at
		close(b.ended)
	}()
	t.Cleanup(func() {
		_ = b.cmd.Process.Kill() // it has ended, unless the test failed
		<-b.ended
		for pid := range b.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
	})
	return b
}

// said is what the test binary printed.
func (b *binary) said() string {
	text, err := os.ReadFile(b.output)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// up is nil once the cluster is up, with processes that can be seen.
func (b *binary) up() error {
	if err := b.lives(); err != nil || !strings.Contains(b.said(), ready) {
		return errors.Join(err, errors.New("it has not said: "+ready))
	}
	return b.comingUp()
}

// comingUp is nil once etcd runs.
func (b *binary) comingUp() error {
	if err := b.lives(); err != nil {
		return err
	}
	for _, line := range b.processes() {
		if strings.Contains(line, "/bin/etcd ") {
			return nil
		}
	}
	return errors.New("no etcd runs")
}

// lives is nil as long as the test binary runs.
func (b *binary) lives() error {
	select {
	case <-b.ended:
		return errors.New("the test binary has ended by itself: " + b.said())
	default:
		return nil
	}
}

// processes are the command lines of the live processes of clusters below the test binary's temporary directory, by process.
func (b *binary) processes() map[int]string {
	found := map[int]string{}
	paths, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte("\x00"+mark+b.temporary+"/")) {
			continue // gone, or somebody else's
		}
		var pid int
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if _, scanned := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil && scanned == nil {
			found[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return found
}
