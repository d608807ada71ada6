package decade

import (
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"kubelet-ca-courier/node"
)

// disk is a node's disk in memory. It can be full, its file can be held open by others, and the program that uses it can
// be killed at any step.
type disk struct {
	m          *machine
	files      map[string][]byte
	full, busy bool
	steps      int
	stopAt     int // 0 is never
}

var _ node.Disk = (*disk)(nil)

// stopped is what a landing that is killed panics with.
type stopped struct{}

// step counts an operation. After each the kubelet's file is one that a kubelet can start with.
func (d *disk) step(do func() error) error {
	d.steps++
	if d.steps == d.stopAt {
		if d.m.w.oneIn("disk/after", 2) {
			_ = do()
		}
		d.m.w.looked(d.m)
		panic(stopped{})
	}
	err := do()
	d.m.w.looked(d.m)
	return err
}

// Inspect implements node.Disk.
func (d *disk) Inspect(path string) (entry node.Entry, err error) {
	err = d.step(func() error {
		data, exists := d.files[path]
		switch {
		case exists:
			entry = node.Entry{Kind: node.Regular, Size: int64(len(data))}
		case path == "/c" || path == "/c/k":
			entry = node.Entry{Kind: node.Directory}
		default:
			entry = node.Entry{Kind: node.Missing}
		}
		return nil
	})
	return entry, err
}

// ReadFile implements node.Disk.
func (d *disk) ReadFile(path string) (data []byte, err error) {
	err = d.step(func() error {
		content, exists := d.files[path]
		if !exists {
			return fs.ErrNotExist
		}
		data = content
		return nil
	})
	return data, err
}

// List implements node.Disk.
func (d *disk) List(directory string) (names []string, err error) {
	err = d.step(func() error {
		for path := range d.files {
			if name, found := strings.CutPrefix(path, directory+"/"); found {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

// OpenToUsers implements node.Disk.
func (d *disk) OpenToUsers(string) (bool, error) { return false, d.step(func() error { return nil }) }

// CreateDirectory implements node.Disk.
func (d *disk) CreateDirectory(string) error { return d.step(func() error { return nil }) }

// Create implements node.Disk.
func (d *disk) Create(path string) (node.File, error) {
	err := d.step(func() error {
		if _, exists := d.files[path]; exists {
			return fs.ErrExist
		}
		d.files[path] = nil
		return nil
	})
	return &file{d, path}, err
}

// CopyPermissions implements node.Disk.
func (d *disk) CopyPermissions(_, _ string) error { return d.step(func() error { return nil }) }

// Replace implements node.Disk. It wakes the kubelet on some systems and not on others.
func (d *disk) Replace(from, to string) error {
	return d.step(func() error {
		if d.busy {
			return fmt.Errorf("rename: %w", node.ErrBusy)
		}
		d.files[to] = d.files[from]
		delete(d.files, from)
		if to == destination && d.m.w.oneIn("disk/rename-wakes", 2) {
			d.m.load()
		}
		return nil
	})
}

// Remove implements node.Disk.
func (d *disk) Remove(path string) error {
	return d.step(func() error {
		if _, exists := d.files[path]; !exists {
			return fs.ErrNotExist
		}
		delete(d.files, path)
		return nil
	})
}

// SyncDirectory implements node.Disk.
func (d *disk) SyncDirectory(string) error { return d.step(func() error { return nil }) }

// Rewrite implements node.Disk. It wakes the kubelet.
func (d *disk) Rewrite(path string) error {
	return d.step(func() error {
		if path == destination {
			d.m.load()
		}
		return nil
	})
}

// file is a file that is being written.
type file struct {
	disk *disk
	path string
}

// Write implements io.Writer. A full disk takes half.
func (f *file) Write(data []byte) (n int, err error) {
	err = f.disk.step(func() error {
		if f.disk.full {
			f.disk.files[f.path] = data[:len(data)/2]
			return syscall.ENOSPC
		}
		f.disk.files[f.path] = data
		n = len(data)
		return nil
	})
	return n, err
}

// Sync implements node.File.
func (f *file) Sync() error { return f.disk.step(func() error { return nil }) }

// Close implements io.Closer.
func (f *file) Close() error { return f.disk.step(func() error { return nil }) }
