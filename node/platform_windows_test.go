package node_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"kubelet-ca-courier/node"
)

// underWine reports whether Windows is Wine. Its version 8 knows no rename of POSIX semantics, so that any open handle is
// in the way of a replacement there.
func underWine() bool { return os.Getenv("WINEPREFIX") != "" }

// link makes a symbolic link to a directory. Wine shows a link of the system below it as a reparse point but cannot make
// one, so there the system's own ln does it.
func link(t *testing.T, target, path string) {
	t.Helper()
	if !underWine() {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		return
	}
	unix := func(path string) string {
		return os.Getenv("WINEPREFIX") + "/drive_c" + strings.ReplaceAll(strings.TrimPrefix(path, "C:"), `\`, "/")
	}
	line, err := windows.UTF16PtrFromString(`Z:\bin\ln -s ` + unix(target) + " " + unix(path))
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.CreateProcess(nil, line, nil, nil, false, 0, nil, nil, &windows.StartupInfo{},
		&windows.ProcessInformation{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, err := os.Lstat(path); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// openToUsers lets everybody write.
func openToUsers(t *testing.T, path string) {
	t.Helper()
	descriptor, err := windows.SecurityDescriptorFromString("D:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FA;;;WD)")
	if err != nil {
		t.Fatal(err)
	}
	acl, _, err := descriptor.DACL()
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION, nil, nil, acl,
		nil); err != nil {
		t.Fatal(err)
	}
}

// reach says whom the file is open to.
func reach(t *testing.T, path string) string {
	t.Helper()
	descriptor, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		t.Fatal(err)
	}
	switch sddl := descriptor.String(); {
	case strings.Contains(sddl, ";;;WD)"):
		return "users"
	case strings.Contains(sddl, ";;;BU)"), strings.Contains(sddl, ";;;AU)"):
		return sddl
	default:
		return "administrators"
	}
}

// tolerable reports whether a reader may get the error during a replacement: Windows refuses to open a file in the
// instant in which it is being renamed over, and the kubelet then keeps what it has.
func tolerable(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_ACCESS_DENIED)
}

// hold opens a file as another process may: for reading, letting others do what share says.
func hold(t *testing.T, path string, access, share uint32) windows.Handle {
	t.Helper()
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := windows.CreateFile(name, access, share, nil, windows.OPEN_EXISTING, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

func TestADestinationThatIsHeldOpen(t *testing.T) {
	const (
		reads   = windows.FILE_SHARE_READ
		writes  = windows.FILE_SHARE_WRITE
		deletes = windows.FILE_SHARE_DELETE
		reading = windows.GENERIC_READ
		writing = windows.GENERIC_READ | windows.GENERIC_WRITE
	)
	for _, c := range []struct {
		name    string
		access  uint32
		share   uint32
		hinders bool
	}{
		{"for reading, sharing nothing", reading, 0, true},
		{"for reading, sharing reading", reading, reads, true},
		{"for reading, sharing writing", reading, writes, true},
		{"for reading, sharing reading and writing, as Go does", reading, reads | writes, true},
		{"for reading, sharing deletion", reading, deletes, true},
		{"for reading, sharing reading and deletion", reading, reads | deletes, underWine()},
		{"for reading, sharing everything", reading, reads | writes | deletes, underWine()},
		{"for writing, sharing reading", writing, reads, true},
		{"for writing, sharing everything", writing, reads | writes | deletes, underWine()},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, snapshot := canonical(t, authority(t, "old")), canonical(t, authority(t, "new"))

			t.Run("for good", func(t *testing.T) {
				s := newStage(t)
				write(t, s.destination, old)
				handle := hold(t, s.destination, c.access, c.share)
				got := s.land(s.mount(t, snapshot))
				if err := windows.CloseHandle(handle); err != nil {
					t.Fatal(err)
				}
				if c.hinders {
					wantResult(t, got, node.Failed, node.ExitDestinationBusy)
					wantFile(t, s.destination, old)
				} else {
					wantResult(t, got, node.Replaced, node.ExitOK)
					wantFile(t, s.destination, snapshot)
				}
				wantAlone(t, s.destination)
			})

			t.Run("for a while", func(t *testing.T) {
				s := newStage(t)
				write(t, s.destination, old)
				handle := hold(t, s.destination, c.access, c.share)
				released := false
				s.onSleep = func() {
					if !released && s.slept > 100*time.Millisecond {
						released = true
						if err := windows.CloseHandle(handle); err != nil {
							t.Error(err)
						}
					}
				}
				got := s.land(s.mount(t, snapshot))
				wantResult(t, got, node.Replaced, node.ExitOK)
				wantFile(t, s.destination, snapshot)
				wantAlone(t, s.destination)
				if !released {
					if err := windows.CloseHandle(handle); err != nil && !errors.Is(err, windows.ERROR_INVALID_HANDLE) {
						t.Error(err)
					}
				}
			})
		})
	}
}

func TestARenameAloneDoesNotWakeTheKubeletsLoaderUnderWine(t *testing.T) {
	if !underWine() {
		t.Log("on Windows it may or may not: the landing does not depend on it")
		return
	}
	s := newStage(t)
	old, snapshot := canonical(t, authority(t, "old")), canonical(t, authority(t, "new"))
	write(t, s.destination, old)
	kubelet := startLoader(t, s.destination)
	settle(t, s.destination, kubelet, old)

	// What the loader still has in its queue from the watch's beginning may read the first renamed file by chance, the
	// later ones it may not.
	unseen := old
	for attempt := 0; bytes.Equal(unseen, kubelet.content.CurrentCABundleContent()); attempt++ {
		if attempt == 10 {
			t.Fatal("renames alone wake the loader: this machine cannot show that the notice is needed")
		}
		unseen = [][]byte{snapshot, old}[attempt%2]
		write(t, s.destination+".new", unseen)
		for err := node.ErrBusy; err != nil; { // the loader may be reading
			if err = s.lander.Disk.Replace(s.destination+".new", s.destination); err != nil && !errors.Is(err, node.ErrBusy) &&
				!errors.Is(err, fs.ErrPermission) {
				t.Fatal(err)
			}
		}
		kubelet.holds(unseen, 3*time.Second)
	}
	if err := s.lander.Disk.Rewrite(s.destination); err != nil {
		t.Fatal(err)
	}
	took, ok := kubelet.holds(unseen, patient)
	if !ok {
		t.Fatal("the rewritten byte did not wake the loader")
	}
	t.Logf("not seen 3s after the rename, seen %v after the rewritten byte", took)
}
