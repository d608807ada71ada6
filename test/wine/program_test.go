package wine_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/node"
	"kubelet-ca-courier/test/need"
)

const (
	volume      = `C:\kubelet-ca-courier\ca-bundle.crt`
	destination = `C:\k\kubelet-ca.crt`
)

// arguments returns a Job's command line for a snapshot that is mounted.
func arguments(snapshot []byte, destination string, more ...string) []string {
	return append([]string{
		"--source", volume, "--sha256", hash(snapshot), "--destination", destination, "--patience", patience,
	}, more...)
}

func TestThePackagesOwnTestsPassUnderWine(t *testing.T) {
	m := newMachine(t)
	program := filepath.Join(t.TempDir(), "node.test.exe")
	compile := exec.Command("go", "test", "-c", "-o", program, "./node")
	compile.Dir = root
	compile.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=windows", "GOARCH=amd64")
	if output, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	command := m.command(program, "-test.v")
	command.Dir = filepath.Join(root, "node")
	output, err := command.CombinedOutput()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%v:\n%s", err, output)
	}
	for _, name := range []string{
		"TestTheKubeletsLoaderSeesEveryReplacement", "TestARenameAloneDoesNotWakeTheKubeletsLoaderUnderWine",
		"TestALandingThatIsStoppedAnywhereIsMadeGoodByTheNext", "TestAReaderSeesOneWholeVersionOrTheOther",
		"TestADestinationThatIsHeldOpen",
	} {
		if !strings.Contains(string(output), "--- PASS: "+name) {
			t.Errorf("%s did not run", name)
		}
	}
	for line := range strings.SplitSeq(string(output), "\n") {
		if strings.Contains(line, "_test.go:") {
			t.Log(strings.TrimSpace(line)) // what the tests measured
		}
	}
}

func TestTheProgramLandsTheFile(t *testing.T) {
	m, program := newMachine(t), courier(t)
	old, wanted := snapshot(t, "old"), snapshot(t, "new", "newer")
	m.write(t, volume, wanted)
	long := `C:\` + strings.Repeat("a", 120) + `\` + strings.Repeat("b", 120) + `\` + strings.Repeat("c", 120) + `\ca.crt`
	for i, c := range []struct {
		name        string
		destination string
		held        []byte // nothing when nil
		more        []string
		outcome     node.Outcome
		code        node.ExitCode
	}{
		{"a look at a file that is not there", destination, nil, []string{"--check"}, node.WouldChange, node.ExitWouldChange},
		{"a directory that is not there", destination, nil, nil, node.Failed, node.ExitDestinationRefused},
		{"a directory that it may make", destination, nil, []string{"--create-parent"}, node.Created, node.ExitOK},
		{"another bundle", destination, old, nil, node.Replaced, node.ExitOK},
		{"another bundle, a dry run", destination, old, []string{"--dry-run"}, node.WouldChange, node.ExitWouldRemove},
		{"the same bundle", destination, wanted, nil, node.Unchanged, node.ExitOK},
		{"slashes", "c:/k/kubelet-ca.crt", old, nil, node.Replaced, node.ExitOK},
		{"spaces and what is special to cmd", `C:\Program Files\k & k (1)\ca %PATH% ^.crt`, old, nil, node.Replaced, node.ExitOK},
		{"letters beyond ASCII", `C:\k\ключ-鍵.crt`, old, nil, node.Replaced, node.ExitOK},
		{"a path of more than 260 characters", long, old, nil, node.Replaced, node.ExitOK},
		{"a new file in a path of more than 260 characters", `C:\new` + long[2:], nil, []string{"--create-parent"},
			node.Created, node.ExitOK},
		{"no drive", `\k\kubelet-ca.crt`, nil, nil, node.Failed, node.ExitDestinationRefused},
		{"a relative path", `kubelet-ca.crt`, nil, nil, node.Failed, node.ExitDestinationRefused},
		{"a share", `\\server\share\ca.crt`, nil, nil, node.Failed, node.ExitDestinationRefused},
		{"a directory", `C:\windows`, nil, nil, node.Failed, node.ExitDestinationRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			where := c.destination
			if i >= 3 && c.held != nil {
				m.write(t, strings.ReplaceAll(strings.Replace(where, "c:/", `C:\`, 1), "/", `\`), c.held)
			}
			got := run(t, m.command(program, arguments(wanted, where, c.more...)...))
			wantResult(t, got, c.outcome, c.code)
			if c.code == node.ExitOK {
				wantFile(t, m.disk(got.Destination), wanted)
				if !got.Noticed {
					t.Error("the kubelet was not told")
				}
			}
		})
	}
}

// TestTheCommandLineOfTheDocumentsIsUnderstood runs what docs/landing.md tells an Administrator to type on a node.
func TestTheCommandLineOfTheDocumentsIsUnderstood(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/landing.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```powershell\n")
	line, _, more := strings.Cut(block, "\n")
	words := strings.Fields(line)
	if !found || !more || len(words) < 7 || words[0] != node.Program {
		t.Fatalf("docs/landing.md gives the command %q", line)
	}
	m, program := newMachine(t), courier(t)
	wanted := snapshot(t, "new")
	m.write(t, `C:\work\`+node.BundleKey, wanted)
	m.write(t, destination, snapshot(t, "old"))
	for i, word := range words {
		if word == "HEX" {
			words[i] = hash(wanted)
		}
	}
	for _, c := range []struct {
		arguments []string
		outcome   node.Outcome
		code      node.ExitCode
	}{
		{words[1:], node.WouldChange, node.ExitWouldRemove},
		{words[1 : len(words)-1], node.Replaced, node.ExitOK}, // "Without either it lands the file"
		{words[1:], node.Unchanged, node.ExitOK},
	} {
		wantResult(t, run(t, m.command(program, c.arguments...)), c.outcome, c.code)
	}
	wantFile(t, m.disk(destination), wanted)
}

func TestTheVolumeIsFoundInBothMountStyles(t *testing.T) {
	m, program := newMachine(t), courier(t)
	wanted := snapshot(t, "new")
	m.write(t, `C:\C\0123456789\kubelet-ca-courier\ca-bundle.crt`, wanted)
	m.write(t, `C:\k\other`, nil)
	command := m.command(program, arguments(wanted, destination)...)
	command.Env = append(command.Env, node.MountPointVariable+`=C:\C\0123456789\`)
	wantResult(t, run(t, command), node.Created, node.ExitOK)
}

func TestADestinationThatMayNotBeReplacedStaysAsItIs(t *testing.T) {
	old, wanted := snapshot(t, "old"), snapshot(t, "new")
	m, program := newMachine(t), courier(t)
	m.write(t, volume, wanted)
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, m *machine)
		code    node.ExitCode
	}{
		{"read-only", func(t *testing.T, m *machine) {
			t.Helper()
			if err := os.Chmod(m.disk(destination), 0o444); err != nil {
				t.Fatal(err)
			}
		}, node.ExitWriteFailed},
		{"behind a link", func(t *testing.T, m *machine) {
			t.Helper()
			if err := os.Rename(m.disk(`C:\k`), m.disk(`C:\elsewhere`)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("elsewhere", m.disk(`C:\k`)); err != nil {
				t.Fatal(err)
			}
		}, node.ExitDestinationRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.RemoveAll(m.disk(destination)); err != nil {
				t.Fatal(err)
			}
			m.write(t, destination, old)
			c.prepare(t, m)
			wantResult(t, run(t, m.command(program, arguments(wanted, destination)...)), node.Failed, c.code)
			wantFile(t, m.disk(destination), old)
			wantAlone(t, m.disk(destination))
		})
	}
}

func TestAnotherProcessHoldsTheDestinationOpen(t *testing.T) {
	m, program, holder := newMachine(t), courier(t), helper(t, "holder")
	old, wanted := snapshot(t, "old"), snapshot(t, "new")
	m.write(t, volume, wanted)
	for _, access := range []string{"read", "write"} {
		for _, share := range []string{"-", "r", "w", "d", "rw", "rd", "wd", "rwd"} {
			t.Run(access+" sharing "+share, func(t *testing.T) {
				destination := `C:\` + access + share + `\kubelet-ca.crt`
				m.write(t, destination, old)
				held := m.start(t, holder, destination, access, share)
				if line := held.next(t); line != "open" {
					t.Fatalf("the holder says %q", line)
				}
				got := run(t, m.command(program, arguments(wanted, destination)...))
				wantResult(t, got, node.Failed, node.ExitDestinationBusy)
				wantFile(t, m.disk(destination), old)
				wantAlone(t, m.disk(destination))

				held.release()
				wantResult(t, run(t, m.command(program, arguments(wanted, destination)...)), node.Replaced, node.ExitOK)
				wantFile(t, m.disk(destination), wanted)
			})
		}
	}
}

func TestAFullDiskLeavesTheOldFileAndNoOther(t *testing.T) {
	need.Root(t)
	m, program := newMachine(t), courier(t)
	old, wanted := snapshot(t, "old"), snapshot(t, "one", "two", "three", "four", "five", "six", "seven", "eight")
	m.write(t, volume, wanted)
	drive := t.TempDir()
	if output, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", drive).CombinedOutput(); err != nil {
		need.LeaveOut(t, "needs to mount a small file system: %s", output)
	}
	t.Cleanup(func() {
		if output, err := exec.Command("umount", drive).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", output)
		}
	})
	devices := filepath.Join(m.prefix, "dosdevices") // Wine makes it when the first program starts
	if err := errors.Join(os.MkdirAll(devices, 0o755), os.Symlink("../drive_c", filepath.Join(devices, "c:")),
		os.Symlink(drive, filepath.Join(devices, "d:")), os.Symlink("/", filepath.Join(devices, "z:"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(drive, "k", "ca.crt")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, old, 0o600); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(drive, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	got := run(t, m.command(program, arguments(wanted, `D:\k\ca.crt`)...))
	wantResult(t, got, node.Failed, node.ExitWriteFailed)
	wantFile(t, file, old)
	wantAlone(t, file)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	wantResult(t, run(t, m.command(program, arguments(wanted, `D:\k\ca.crt`)...)), node.Replaced, node.ExitOK)
	wantFile(t, file, wanted)
}

func TestTheKubeletsLoaderSeesWhatTheProgramLands(t *testing.T) {
	m, program, loader := newMachine(t), courier(t), helper(t, "loader")
	snapshots := [][]byte{snapshot(t, "one"), snapshot(t, "two", "three")}
	m.write(t, destination, snapshots[0])
	kubelet := m.start(t, loader, destination)
	waitFor(t, kubelet, snapshots[0])

	const replacements = 100
	var slowest time.Duration
	for i := range replacements {
		wanted := snapshots[(i+1)%2]
		m.write(t, volume, wanted)
		wantResult(t, run(t, m.command(program, arguments(wanted, destination, "--patience", "1m")...)), node.Replaced, node.ExitOK)
		landed := time.Now()
		waitFor(t, kubelet, wanted)
		slowest = max(slowest, time.Since(landed))
	}
	t.Logf("%d of %d replacements seen, the slowest %v after the program's end", replacements, replacements, slowest)
}

// waitFor returns when the loader says that it holds the bundle. The test's own time limit is the only one.
func waitFor(t *testing.T, kubelet *background, bundle []byte) {
	t.Helper()
	for kubelet.next(t) != hash(bundle) {
	}
}

func TestTheProgramIsSmallAndQuick(t *testing.T) {
	m, program := newMachine(t), courier(t)
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	const largest = 4 << 20
	if info.Size() > largest {
		t.Errorf("the program has %d bytes, more than 4 MiB", info.Size())
	}
	wanted := snapshot(t, "one")
	m.write(t, volume, wanted)
	m.write(t, destination, wanted)
	quickest := time.Hour
	for range 10 {
		start := time.Now()
		wantResult(t, run(t, m.command(program, arguments(wanted, destination)...)), node.Unchanged, node.ExitOK)
		quickest = min(quickest, time.Since(start))
	}
	t.Logf("%d bytes; %v with nothing to do, Wine's own start included", info.Size(), quickest)
}
