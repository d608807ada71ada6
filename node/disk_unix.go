//go:build !windows

package node

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// OS is the operating system's own file system.
type OS struct{}

var _ Disk = OS{}

const (
	ownerReadWrite = 0o600
	ownerAll       = 0o700
	anyWrite       = 0o222
	otherWrite     = 0o002
)

// Inspect implements [Disk]. Read-only is a file that nobody may write: a superuser could all the same, and that an
// administrator said so is honoured.
func (OS) Inspect(path string) (Entry, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Entry{Kind: Missing}, nil
	}
	if err != nil {
		return Entry{}, err
	}
	entry := Entry{Kind: Other, ReadOnly: info.Mode().Perm()&anyWrite == 0, Size: info.Size()}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		entry.Kind = Link
	case info.IsDir():
		entry.Kind = Directory
	case info.Mode().IsRegular():
		entry.Kind = Regular
	}
	return entry, nil
}

// ReadFile implements [Disk].
func (OS) ReadFile(path string) ([]byte, error) { return os.ReadFile(path) }

// OpenToUsers implements [Disk]. A sticky directory keeps others from replacing a file that is not theirs.
func (OS) OpenToUsers(directory string) (bool, error) {
	info, err := os.Stat(directory)
	if err != nil {
		return false, err
	}
	return info.Mode().Perm()&otherWrite != 0 && info.Mode()&fs.ModeSticky == 0, nil
}

// CreateDirectory implements [Disk].
func (OS) CreateDirectory(path string) error { return os.Mkdir(path, ownerAll) }

// Create implements [Disk].
func (OS) Create(path string) (File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, ownerReadWrite)
}

// CopyPermissions implements [Disk] with the mode and the owner.
func (OS) CopyPermissions(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := os.Lchown(to, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return os.Chmod(to, info.Mode().Perm())
}

// Replace implements [Disk].
func (OS) Replace(from, to string) error { return os.Rename(from, to) }

// SyncDirectory implements [Disk].
func (OS) SyncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	defer directory.Close() //nolint:errcheck // opened for reading
	return directory.Sync()
}

// openForRewrite opens the file for reading and writing in place.
func openForRewrite(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
}

// busy leaves the error as it is: nothing here keeps another process from replacing or removing a file.
func busy(err error) error { return err }
