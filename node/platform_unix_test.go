//go:build !windows

package node_test

import (
	"os"
	"testing"

	"kubelet-ca-courier/node"
)

// link makes a symbolic link.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// openToUsers lets everybody write.
func openToUsers(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, info.Mode().Perm()|0o022); err != nil { //nolint:gosec // that is the point
		t.Fatal(err)
	}
}

// reach says whom the file is open to.
func reach(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	switch mode := info.Mode().Perm(); {
	case mode == 0o600:
		return "administrators"
	case mode&0o022 == 0o022:
		return "users"
	default:
		return mode.String()
	}
}

func TestALinkInTheDestinationsPlaceIsRefused(t *testing.T) {
	s := newStage(t)
	snapshot := canonical(t, authority(t, "first"))
	target := s.destination + ".target"
	write(t, target, []byte("precious"))
	link(t, target, s.destination)
	got := s.land(s.mount(t, snapshot))
	wantResult(t, got, node.Failed, node.ExitDestinationRefused)
	wantError(t, got, "reparse point")
	wantFile(t, target, []byte("precious"))
}

// tolerable reports whether a reader may get the error during a replacement: here none.
func tolerable(error) bool { return false }
