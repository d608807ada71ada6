package node_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/node"
)

func TestADestinationWithOtherCertificatesIsReplacedByTheExactSnapshot(t *testing.T) {
	first, second, third := authority(t, "first"), authority(t, "second"), authority(t, "third")
	old, snapshot := canonical(t, first, second), canonical(t, second, third)
	for _, c := range []struct {
		name    string
		held    []byte
		removed []string
	}{
		{"a file that lacks a certificate", second, nil},
		{"a file that has one too many", old, []string{"CN=first"}},
		{"an empty file", nil, nil},
		{"text that is no bundle", []byte("hello\n"), nil},
		{"the right certificates and a block that the kubelet skips", append(slices.Clone(snapshot),
			"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"...), nil},
		{"a bundle that was cut", old[:len(old)-30], nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			write(t, s.destination, c.held)
			got := s.land(s.mount(t, snapshot))
			wantResult(t, got, node.Replaced, node.ExitOK)
			wantFile(t, s.destination, snapshot)
			wantAlone(t, s.destination)
			var removed []string
			for _, removal := range got.Removed {
				removed = append(removed, removal.Subject)
			}
			if c.removed != nil && !slices.Equal(removed, c.removed) {
				t.Errorf("removed %v, want %v", removed, c.removed)
			}
			if got.RemovedCount != len(got.Removed) || got.Certificates != 2 || !got.Noticed {
				t.Errorf("got %s", got.Line(0))
			}
		})
	}
}

func TestADestinationWithTheSameCertificatesIsNotWritten(t *testing.T) {
	first, second := authority(t, "first"), authority(t, "second")
	snapshot := canonical(t, first, second)
	for _, c := range []struct {
		name string
		held []byte
	}{
		{"the same bytes", snapshot},
		{"another order and a comment", slices.Concat([]byte("# both signers\n"), second, first, second)},
		{"the other order and a comment", slices.Concat(first, []byte("# and\n"), second)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			write(t, s.destination, c.held)
			before, err := os.Stat(s.destination)
			if err != nil {
				t.Fatal(err)
			}
			got := s.land(s.mount(t, snapshot))
			wantResult(t, got, node.Unchanged, node.ExitOK)
			wantFile(t, s.destination, c.held)
			after, err := os.Stat(s.destination)
			if err != nil {
				t.Fatal(err)
			}
			if !os.SameFile(before, after) || !got.Noticed {
				t.Errorf("the file was replaced, or the kubelet was not told: %s", got.Line(0))
			}
		})
	}
}

func TestAMissingDestinationIsCreated(t *testing.T) {
	s := newStage(t)
	snapshot := canonical(t, authority(t, "first"))
	wantResult(t, s.land(s.mount(t, snapshot)), node.Created, node.ExitOK)
	wantFile(t, s.destination, snapshot)
	wantAlone(t, s.destination)
	wantResult(t, s.land(s.mount(t, snapshot)), node.Unchanged, node.ExitOK)
}

func TestAMissingDirectoryIsCreatedOnlyWhenAskedFor(t *testing.T) {
	s := newStage(t)
	s.destination = filepath.Join(filepath.Dir(s.destination), "var", "lib", "kubelet-ca.crt")
	snapshot := canonical(t, authority(t, "first"))
	task := s.mount(t, snapshot)
	got := s.land(task)
	wantResult(t, got, node.Failed, node.ExitDestinationRefused)
	wantError(t, got, "directory is missing")

	task.Mode = node.Check
	wantResult(t, s.land(task), node.WouldChange, node.ExitWouldChange)
	task.Mode, task.CreateParent = node.DryRun, true
	wantResult(t, s.land(task), node.WouldChange, node.ExitWouldChange)
	if _, err := os.Stat(filepath.Dir(s.destination)); !os.IsNotExist(err) {
		t.Fatalf("a dry run made the directory: %v", err)
	}

	task.Mode = node.Write
	wantResult(t, s.land(task), node.Created, node.ExitOK)
	wantFile(t, s.destination, snapshot)
}

func TestALookWritesNothingAndSaysWhatAWriteWouldDo(t *testing.T) {
	first, second := authority(t, "first"), authority(t, "second")
	for _, c := range []struct {
		name     string
		held     []byte
		snapshot []byte
		outcome  node.Outcome
		code     node.ExitCode
	}{
		{"right", slices.Concat(second, first), canonical(t, first, second), node.Unchanged, node.ExitOK},
		{"lacks one", first, canonical(t, first, second), node.WouldChange, node.ExitWouldChange},
		{"broken", []byte("-----BEGIN"), canonical(t, first, second), node.WouldChange, node.ExitWouldChange},
		{"has one that the snapshot lacks", slices.Concat(second, first), canonical(t, second), node.WouldChange, node.ExitWouldRemove},
	} {
		for name, mode := range map[string]node.Mode{"check": node.Check, "dry run": node.DryRun} {
			t.Run(c.name+", "+name, func(t *testing.T) {
				s := newStage(t)
				write(t, s.destination, c.held)
				left := s.destination + ".courier-0123abcd"
				write(t, left, []byte("left"))
				task := s.mount(t, c.snapshot)
				task.Mode = mode
				got := s.land(task)
				wantResult(t, got, c.outcome, c.code)
				if got.Noticed {
					t.Error("the file was touched")
				}
				wantFile(t, s.destination, c.held)
				wantFile(t, left, []byte("left"))
			})
		}
	}
}

func TestAVolumeThatAppearsLateIsWaitedFor(t *testing.T) {
	s := newStage(t)
	snapshot := canonical(t, authority(t, "first"))
	task := s.mount(t, snapshot)
	if err := os.Rename(s.source, s.source+".gap"); err != nil {
		t.Fatal(err)
	}
	pauses := 0
	s.onSleep = func() {
		if pauses++; pauses == 3 {
			if err := os.Rename(s.source+".gap", s.source); err != nil {
				t.Error(err)
			}
		}
	}
	wantResult(t, s.land(task), node.Created, node.ExitOK)
	if pauses != 3 {
		t.Errorf("%d pauses, want 3", pauses)
	}
}

func TestTheVolumeIsFoundUnderTheMountPointToo(t *testing.T) {
	snapshot, decoy := canonical(t, authority(t, "first")), canonical(t, authority(t, "decoy"))
	for _, c := range []struct {
		name  string
		plain []byte // what lies at the plain path; nothing when nil
	}{
		{"nothing at the plain path", nil},
		{"somebody else's bundle at the plain path", decoy},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			task := s.mount(t, snapshot)
			root := temporaryDirectory(t)
			below := filepath.Join(root, strings.TrimPrefix(s.source, filepath.VolumeName(s.source)))
			if err := os.MkdirAll(filepath.Dir(below), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(s.source, below); err != nil {
				t.Fatal(err)
			}
			if c.plain != nil {
				write(t, s.source, c.plain)
			}
			s.lander.MountPoint = root + string(filepath.Separator)
			wantResult(t, s.land(task), node.Created, node.ExitOK)
			wantFile(t, s.destination, snapshot)
		})
	}
}

func TestOrdinaryNamesThatOftenGoWrongDoNot(t *testing.T) {
	snapshot := canonical(t, authority(t, "first"))
	for _, name := range []string{
		"kubelet ca.crt", "kubelet's & (new) 100% ca.crt", "кубелет-ca.crt", "証明書.crt", "é.crt", ".crt", "no-extension",
		strings.Repeat("d", 100) + "/" + strings.Repeat("e", 100) + "/" + strings.Repeat("f", 100) + "/kubelet-ca.crt",
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.destination = filepath.Join(filepath.Dir(s.destination), filepath.FromSlash(name))
			task := s.mount(t, snapshot)
			task.CreateParent = true
			wantResult(t, s.land(task), node.Created, node.ExitOK)
			snapshot := canonical(t, authority(t, "second"))
			wantResult(t, s.land(s.mount(t, snapshot)), node.Replaced, node.ExitOK)
			wantFile(t, s.destination, snapshot)
			wantAlone(t, s.destination)
		})
	}
}

func TestWhatAStoppedLandingLeftIsRemovedAndNothingElse(t *testing.T) {
	s := newStage(t)
	snapshot := canonical(t, authority(t, "first"))
	left := []string{".courier-00000000", ".courier-89abcdef"}
	kept := []string{".bak", ".courier-", ".courier-0000000", ".courier-0000000g", ".courier-000000000"}
	for _, suffix := range slices.Concat(left, kept) {
		write(t, s.destination+suffix, []byte("x"))
	}
	other := filepath.Join(filepath.Dir(s.destination), "other.crt.courier-00000000")
	write(t, other, []byte("x"))
	wantResult(t, s.land(s.mount(t, snapshot)), node.Created, node.ExitOK)
	for _, suffix := range left {
		if _, err := os.Lstat(s.destination + suffix); !os.IsNotExist(err) {
			t.Errorf("%s is still there", suffix)
		}
	}
	for _, suffix := range kept {
		wantFile(t, s.destination+suffix, []byte("x"))
	}
	wantFile(t, other, []byte("x"))
}

func TestTheOwnersPermissionsAreKeptAndNewFilesAreClosed(t *testing.T) {
	s := newStage(t)
	wantResult(t, s.land(s.mount(t, canonical(t, authority(t, "first")))), node.Created, node.ExitOK)
	if got := reach(t, s.destination); got != "administrators" {
		t.Errorf("a new file is open to %s", got)
	}
	openToUsers(t, s.destination)
	wantResult(t, s.land(s.mount(t, canonical(t, authority(t, "second")))), node.Replaced, node.ExitOK)
	if got := reach(t, s.destination); got != "users" {
		t.Errorf("a replaced file is open to %s, want users as before", got)
	}
}

func TestADirectoryThatUsersCanWriteToIsReported(t *testing.T) {
	s := newStage(t)
	task := s.mount(t, canonical(t, authority(t, "first")))
	if got := s.land(task); len(got.Warnings) > 0 {
		t.Errorf("warnings about a closed directory: %q", got.Warnings)
	}
	openToUsers(t, filepath.Dir(s.destination))
	for _, mode := range []node.Mode{node.Write, node.DryRun, node.Check} {
		task.Mode = mode
		got := s.land(task)
		wantResult(t, got, node.Unchanged, node.ExitOK)
		if len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "ordinary users can write") {
			t.Errorf("warnings %q", got.Warnings)
		}
	}
}

func TestAReaderSeesOneWholeVersionOrTheOther(t *testing.T) {
	s := newStage(t)
	s.inRealTime()
	snapshots := [][]byte{
		canonical(t, authority(t, "one")),
		canonical(t, authority(t, "two"), authority(t, "three"), authority(t, "four")),
	}
	write(t, s.destination, snapshots[1])

	const replacements = 1000
	landed := make(chan struct{})
	reads := make(chan int)
	go func() {
		count := 0
		defer func() { reads <- count }()
		for ; ; count++ {
			select {
			case <-landed:
				return
			case <-time.After(time.Millisecond): // leaves the landing a chance
			}
			data, err := os.ReadFile(s.destination)
			switch {
			case err != nil && !tolerable(err):
				t.Errorf("read %d: %v", count, err)
				return
			case err == nil && !bytes.Equal(data, snapshots[0]) && !bytes.Equal(data, snapshots[1]):
				t.Errorf("read %d: %d bytes that are neither version", count, len(data))
				return
			}
		}
	}()
	for i := range replacements {
		got := s.land(s.mount(t, snapshots[i%2]))
		if got.Outcome != node.Replaced || got.Code != node.ExitOK {
			t.Errorf("replacement %d: %s", i, got.Line(0))
			break
		}
	}
	close(landed)
	t.Logf("%d replacements during %d reads", replacements, <-reads)
	wantAlone(t, s.destination)
}
