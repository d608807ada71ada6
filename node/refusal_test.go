package node_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kubelet-ca-courier/node"
)

func TestASourceThatIsNotTheExpectedBundleIsRefused(t *testing.T) {
	s := newStage(t)
	old, snapshot := canonical(t, authority(t, "old")), canonical(t, authority(t, "new"))
	write(t, s.destination, old)
	task := s.mount(t, snapshot)

	other := task
	other.SHA256 = hash(old)
	got := s.land(other)
	wantResult(t, got, node.Failed, node.ExitSourceMismatch)
	wantError(t, got, hash(snapshot))

	broken := slices.Concat(snapshot, []byte("-----BEGIN CERTIFICATE-----\n"))
	got = s.land(s.mount(t, broken))
	wantResult(t, got, node.Failed, node.ExitSourceMismatch)
	wantError(t, got, "not well-formed")

	if err := os.Remove(s.source); err != nil {
		t.Fatal(err)
	}
	wantResult(t, s.land(task), node.Failed, node.ExitSourceMissing)
	if s.slept == 0 {
		t.Error("a missing source was not waited for")
	}
	wantFile(t, s.destination, old)
}

func TestWhatIsNoPlaceForTheFileIsRefused(t *testing.T) {
	snapshot := canonical(t, authority(t, "first"))
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, destination string) string // returns the destination to use
		want    string
	}{
		{"a relative path", func(*testing.T, string) string { return "kubelet-ca.crt" }, "relative"},
		{"a directory", func(t *testing.T, destination string) string {
			t.Helper()
			mkdir(t, destination)
			return destination
		}, "a directory"},
		{"a directory that is a link", func(t *testing.T, destination string) string {
			t.Helper()
			target := filepath.Join(filepath.Dir(destination), "target")
			mkdir(t, target)
			link(t, target, filepath.Join(filepath.Dir(destination), "link"))
			return filepath.Join(filepath.Dir(destination), "link", "kubelet-ca.crt")
		}, "reparse point"},
		{"a file in place of a directory", func(t *testing.T, destination string) string {
			t.Helper()
			write(t, destination, snapshot)
			return filepath.Join(destination, "kubelet-ca.crt")
		}, "is a file"},
		{"a file that is far too large", func(t *testing.T, destination string) string {
			t.Helper()
			write(t, destination, nil)
			if err := os.Truncate(destination, 1<<25); err != nil {
				t.Fatal(err)
			}
			return destination
		}, "no CA bundle"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			task := s.mount(t, snapshot)
			task.Destination = c.prepare(t, s.destination)
			for _, mode := range []node.Mode{node.Write, node.DryRun, node.Check} {
				task.Mode = mode
				got := s.land(task)
				wantResult(t, got, node.Failed, node.ExitDestinationRefused)
				wantError(t, got, c.want)
			}
		})
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestAReadOnlyDestinationIsLeftAlone(t *testing.T) {
	s := newStage(t)
	old, snapshot := canonical(t, authority(t, "old")), canonical(t, authority(t, "new"))
	write(t, s.destination, old)
	if err := os.Chmod(s.destination, 0o400); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(s.destination, 0o600) })
	task := s.mount(t, snapshot)
	got := s.land(task)
	wantResult(t, got, node.Failed, node.ExitWriteFailed)
	wantError(t, got, "read-only")
	wantFile(t, s.destination, old)
	wantAlone(t, s.destination)
	task.Mode = node.Check
	wantResult(t, s.land(task), node.WouldChange, node.ExitWouldRemove)
}

// intruder is a disk on which somebody else writes the destination right after each rename.
type intruder struct {
	node.OS
	content []byte
}

func (d intruder) Replace(from, to string) error {
	if err := d.OS.Replace(from, to); err != nil {
		return err
	}
	return os.WriteFile(to, d.content, 0o600)
}

func TestASecondWriterIsNoticed(t *testing.T) {
	s := newStage(t)
	s.lander.Disk = intruder{content: canonical(t, authority(t, "theirs"))}
	got := s.land(s.mount(t, canonical(t, authority(t, "ours"))))
	wantResult(t, got, node.Failed, node.ExitReadBackDiffers)
}

// broken is a disk on which one operation fails.
type broken struct {
	node.OS
	err error
}

func (d broken) Replace(string, string) error { return d.err }

func TestAFailedReplacementIsClassifiedAndLeavesNoFile(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		code  node.ExitCode
		waits bool
	}{
		{"held open", fmt.Errorf("rename: %w", node.ErrBusy), node.ExitDestinationBusy, true},
		{"refused", fs.ErrPermission, node.ExitWriteFailed, true},
		{"broken", errors.New("the disk is full"), node.ExitWriteFailed, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			old := canonical(t, authority(t, "old"))
			write(t, s.destination, old)
			s.lander.Disk = broken{err: c.err}
			wantResult(t, s.land(s.mount(t, canonical(t, authority(t, "new")))), node.Failed, c.code)
			wantFile(t, s.destination, old)
			wantAlone(t, s.destination)
			if waited := s.slept > 0; waited != c.waits || s.slept > s.lander.Patience {
				t.Errorf("slept %v", s.slept)
			}
		})
	}
}
