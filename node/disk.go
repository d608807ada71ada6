package node

import (
	"errors"
	"io"
)

// ErrBusy says that another process holds the file open in a way that keeps us out. It passes, so it is retried.
var ErrBusy = errors.New("another process holds the file open")

// Kind is what a path names.
type Kind int

// Kinds of directory entries, as far as the landing tells them apart.
const (
	Missing Kind = iota
	Regular
	Directory
	Link  // a symbolic link, a junction or any other reparse point
	Other // a device, a pipe, a socket
)

// String says what the kind is, as a sentence about a path needs it.
func (k Kind) String() string {
	switch k {
	case Missing:
		return "missing"
	case Regular:
		return "a file"
	case Directory:
		return "a directory"
	case Link:
		return "a reparse point or symbolic link"
	default:
		return "not a file"
	}
}

// Entry is what the disk says about a path, links not followed.
type Entry struct {
	Kind     Kind
	ReadOnly bool // the read-only attribute, or no write bit for anybody
	Size     int64
}

// Disk is all that the landing needs of a file system. Each method makes one change or none, so that a test can stop the
// landing between any two of them.
type Disk interface {
	// Inspect describes the path without following links. That nothing is there is an answer, not an error.
	Inspect(path string) (Entry, error)
	// ReadFile reads the file, keeping nobody else from reading, writing or replacing it.
	ReadFile(path string) ([]byte, error)
	// List returns the names in the directory.
	List(directory string) ([]string, error)
	// OpenToUsers reports whether users who are not administrators may add or replace files in the directory.
	OpenToUsers(directory string) (bool, error)
	// CreateDirectory creates a directory for SYSTEM and Administrators alone.
	CreateDirectory(path string) error
	// Create creates a file that was not there, for SYSTEM and Administrators alone.
	Create(path string) (File, error)
	// CopyPermissions gives one file the permissions of another.
	CopyPermissions(from, to string) error
	// Replace renames one file to another, over what was there, in one step.
	Replace(from, to string) error
	// Remove deletes a file.
	Remove(path string) error
	// SyncDirectory flushes the names in the directory to the disk, where the system can do that.
	SyncDirectory(path string) error
	// Rewrite writes the file's first byte again with the value that it has.
	Rewrite(path string) error
}

// File is a file that is being written.
type File interface {
	io.WriteCloser
	// Sync flushes what was written to the disk.
	Sync() error
}
