package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	batchv1 "k8s.io/api/batch/v1"

	"kubelet-ca-courier/hack/lab/labtest"
)

// chances is how often a landing is tried to be caught in mid-write. What is caught depends on who is quicker.
const chances = 15

func TestALandingKilledInMidWriteLeavesTheFileWholeAndTheNextOneDelivers(t *testing.T) {
	for name, moment := range map[string]uint32{
		"with its temporary file just made":   unix.IN_CREATE,
		"with its temporary file just filled": unix.IN_MODIFY,
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			held := c.rotate(t)
			c.settled(t, held)
			whole := c.neverBroken(t)
			defer whole()
			content, caught := held, []int(nil)
			for chance := 0; caught == nil; chance++ {
				if chance == chances {
					t.Fatalf("no landing was caught in mid-write in %d rotations", chances)
				}
				c.settled(t, content)
				held, content, caught = c.catch(t, content, moment)
				t.Logf("rotation %d of at most %d: caught %v", chance+1, chances, caught != nil)
			}
			send(caught, syscall.SIGKILL)
			if data := labtest.Must[[]byte](t)(os.ReadFile(c.File("win-1"))); !bytes.Equal(data, held) {
				t.Errorf("after the kill the file is not what it was before, but has %d bytes", len(data))
			}
			c.settled(t, content)
			if job := labtest.Must[map[string]batchv1.Job](t)(c.Jobs(t.Context()))["win-1"]; job.Status.Failed == 0 {
				t.Error("no pod of the Job has failed: what was killed was not the landing")
			}
			if left := c.temporaries(t, "win-1"); len(left) > 0 {
				t.Errorf("temporary files are left: %q", left)
			}
		})
	}
}

// catch rotates once and tries to stop the landing on win-1 at that moment of its temporary file's life. It returns what the
// file held before, what it is to hold, and the landing's processes, which stand still in mid-write; none if it was too quick.
func (c *cluster) catch(t *testing.T, held []byte, moment uint32) (before, after []byte, caught []int) {
	t.Helper()
	watch := c.watchTemporaries(t, "win-1", moment)
	defer func() { _ = unix.Close(watch) }()
	after = c.rotate(t)
	labtest.Eventually(t, "a landing is caught, or through", func(ctx context.Context) error {
		for ctx.Err() == nil {
			landings := c.landings("win-1")
			if seen(t, watch) {
				send(landings, syscall.SIGSTOP)
				caught = landings
				return nil
			}
			if data, err := os.ReadFile(c.File("win-1")); err != nil || bytes.Equal(data, after) {
				return err
			}
		}
		return ctx.Err()
	})
	stopped(t, caught)
	data := labtest.Must[[]byte](t)(os.ReadFile(c.File("win-1")))
	if len(caught) == 0 || ended(caught) || bytes.Equal(data, after) || len(c.temporaries(t, "win-1")) == 0 {
		send(caught, syscall.SIGCONT)
		return held, after, nil
	}
	return held, after, caught
}

// watchTemporaries has the kernel tell of files in the directory of a node's file.
func (c *cluster) watchTemporaries(t *testing.T, node string, moment uint32) (inotify int) {
	t.Helper()
	inotify = labtest.Must[int](t)(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC))
	labtest.Must[int](t)(unix.InotifyAddWatch(inotify, filepath.Dir(c.File(node)), moment))
	return inotify
}

// seen waits a moment for the kernel to tell of a temporary file.
func seen(t *testing.T, inotify int) bool {
	t.Helper()
	const milliseconds = 5
	poll := []unix.PollFd{{Fd: int32(inotify), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, milliseconds); err != nil && !errors.Is(err, unix.EINTR) {
		t.Fatal(err)
	} else if n <= 0 {
		return false
	}
	buffer := make([]byte, 1<<12)
	n := labtest.Must[int](t)(unix.Read(inotify, buffer))
	return bytes.Contains(buffer[:n], []byte(temporary))
}

// temporary is in the name of every temporary file.
const temporary = "kubelet-ca.crt.courier-"

// temporaries are the temporary files beside a node's file.
func (c *cluster) temporaries(t *testing.T, node string) []string {
	t.Helper()
	var names []string
	for _, entry := range labtest.Must[[]os.DirEntry](t)(os.ReadDir(filepath.Dir(c.File(node)))) {
		if strings.HasPrefix(entry.Name(), temporary) {
			names = append(names, entry.Name())
		}
	}
	return names
}

// landings are the processes of the landing on a node, under Wine or native: they have its name and the node's directory.
func (c *cluster) landings(node string) []int {
	var found []int
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("courier-node")) {
			continue // gone, or another program
		}
		environ, err := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if err != nil || !bytes.Contains(environ, []byte(filepath.Dir(c.Disk(node))+"/")) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

func send(processes []int, signal syscall.Signal) {
	for _, pid := range processes {
		_ = syscall.Kill(pid, signal) // it may have ended by itself
	}
}

// ended says whether one of the processes has ended.
func ended(processes []int) bool {
	for _, pid := range processes {
		if state := states(pid); state == "" || strings.ContainsAny(state, "ZX") {
			return true
		}
	}
	return false
}

// stopped waits until no thread of the processes runs any more.
func stopped(t *testing.T, processes []int) {
	t.Helper()
	labtest.Eventually(t, "the landing stands still", func(context.Context) error {
		for _, pid := range processes {
			if running := strings.Trim(states(pid), "TtZX"); running != "" {
				return fmt.Errorf("%d threads of process %d run", len(running), pid)
			}
		}
		return nil
	})
}

// states are the states of a process's threads, a letter each; none when it is gone (proc(5), the field behind the name).
func states(pid int) string {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is well-formed
	letters := ""
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if at := bytes.LastIndexByte(stat, ')'); err == nil && at >= 0 && at+2 < len(stat) {
			letters += string(stat[at+2])
		}
	}
	return letters
}
