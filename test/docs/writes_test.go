package docs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kubelet-ca-courier/hack/lab/labtest"
)

// writes counts how often the file on each node is replaced, as the kernel tells it: a copy that was written twice leaves
// nothing else to see.
type writes struct {
	a        *admin
	inotify  int
	nodes    map[int32]string // by watch
	replaced map[string]int
}

// watchWrites begins to count.
func (a *admin) watchWrites() *writes {
	a.t.Helper()
	w := &writes{
		a: a, inotify: labtest.Must[int](a.t)(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)),
		nodes: map[int32]string{}, replaced: map[string]int{},
	}
	a.t.Cleanup(func() { _ = unix.Close(w.inotify) })
	for _, node := range a.windows {
		watch := labtest.Must[int](a.t)(unix.InotifyAddWatch(w.inotify, filepath.Dir(a.File(node)), unix.IN_MOVED_TO|unix.IN_CREATE))
		w.nodes[int32(watch)] = node
	}
	return w
}

// reset begins anew.
func (w *writes) reset() {
	w.count()
	w.replaced = map[string]int{}
}

// count returns how often the file was replaced since the last reset, by node.
func (w *writes) count() map[string]int {
	w.a.t.Helper()
	buffer := make([]byte, 1<<16)
	for {
		n, err := unix.Read(w.inotify, buffer)
		if errors.Is(err, unix.EAGAIN) {
			return w.replaced
		}
		if err != nil {
			w.a.t.Fatal(err)
		}
		for rest := buffer[:n]; len(rest) > 0; {
			watch, length := int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[12:])
			name := rest[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+length]
			rest = rest[unix.SizeofInotifyEvent+length:]
			node, known := w.nodes[watch]
			if !known {
				w.a.t.Fatal("the kernel has lost count")
			}
			if string(bytes.TrimRight(name, "\x00")) == filepath.Base(w.a.File(node)) {
				w.replaced[node]++
			}
		}
	}
}
