package node_test

import (
	"errors"

	"kubelet-ca-courier/node"
)

// moment is when, with regard to an operation, the program is stopped.
type moment string

const (
	before moment = "before"
	during moment = "during" // half of what is written is written; the same as before for anything else
	after  moment = "after"
)

var errStopped = errors.New("the program was stopped")

// stopping is the system's disk under a program that is stopped at one of its operations, as by a power cut or a kill:
// from then on nothing is done, not even cleaning up, and what the program had open is closed.
type stopping struct {
	disk    node.OS
	stopAt  int // the number of the operation, from 0; -1 for never
	moment  moment
	steps   int
	stopped bool
	open    node.File
}

// step does one operation, unless the program was stopped.
func (d *stopping) step(do func() error) error {
	if d.stopped {
		return errStopped
	}
	number := d.steps
	d.steps++
	if number != d.stopAt {
		return do()
	}
	if d.moment == after {
		_ = do()
	}
	d.stopped = true
	if d.open != nil {
		_ = d.open.Close()
	}
	return errStopped
}

func (d *stopping) Inspect(path string) (entry node.Entry, err error) {
	err = d.step(func() (err error) { entry, err = d.disk.Inspect(path); return err })
	return entry, err
}

func (d *stopping) ReadFile(path string) (data []byte, err error) {
	err = d.step(func() (err error) { data, err = d.disk.ReadFile(path); return err })
	return data, err
}

func (d *stopping) List(directory string) (names []string, err error) {
	err = d.step(func() (err error) { names, err = d.disk.List(directory); return err })
	return names, err
}

func (d *stopping) OpenToUsers(directory string) (open bool, err error) {
	err = d.step(func() (err error) { open, err = d.disk.OpenToUsers(directory); return err })
	return open, err
}

func (d *stopping) CreateDirectory(path string) error {
	return d.step(func() error { return d.disk.CreateDirectory(path) })
}

func (d *stopping) Create(path string) (node.File, error) {
	err := d.step(func() (err error) { d.open, err = d.disk.Create(path); return err })
	return stoppingFile{d}, err
}

func (d *stopping) CopyPermissions(from, to string) error {
	return d.step(func() error { return d.disk.CopyPermissions(from, to) })
}

func (d *stopping) Replace(from, to string) error {
	return d.step(func() error { return d.disk.Replace(from, to) })
}

func (d *stopping) Remove(path string) error {
	return d.step(func() error { return d.disk.Remove(path) })
}

func (d *stopping) SyncDirectory(path string) error {
	return d.step(func() error { return d.disk.SyncDirectory(path) })
}

func (d *stopping) Rewrite(path string) error {
	return d.step(func() error { return d.disk.Rewrite(path) })
}

// stoppingFile is the file that such a program writes.
type stoppingFile struct{ disk *stopping }

func (f stoppingFile) Write(data []byte) (n int, err error) {
	if f.disk.steps == f.disk.stopAt && f.disk.moment == during {
		_, _ = f.disk.open.Write(data[:len(data)/2])
	}
	err = f.disk.step(func() (err error) { n, err = f.disk.open.Write(data); return err })
	return n, err
}

func (f stoppingFile) Sync() error { return f.disk.step(f.disk.open.Sync) }

func (f stoppingFile) Close() error {
	return f.disk.step(func() error {
		open := f.disk.open
		f.disk.open = nil
		return open.Close()
	})
}
