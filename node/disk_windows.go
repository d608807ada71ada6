package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// OS is the operating system's own file system.
type OS struct{}

var _ Disk = OS{}

const (
	// administratorsOnly is a protected DACL: full control for SYSTEM and Administrators, nothing inherited from the
	// directory. On a directory it is what its own content inherits.
	administratorsOnly          = "D:P(A;;FA;;;SY)(A;;FA;;;BA)"
	administratorsOnlyDirectory = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

	shareAll = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
)

// Inspect implements [Disk]. A reparse point of any kind is a link: symbolic links and junctions lead elsewhere, and of
// the others (deduplicated, in a cloud) we cannot say what a replacement would do to them.
func (OS) Inspect(path string) (Entry, error) {
	name, err := windows.UTF16PtrFromString(extended(path))
	if err != nil {
		return Entry{}, err
	}
	var data windows.Win32FileAttributeData
	err = windows.GetFileAttributesEx(name, windows.GetFileExInfoStandard, (*byte)(unsafe.Pointer(&data)))
	if errors.Is(err, fs.ErrNotExist) {
		return Entry{Kind: Missing}, nil
	}
	if err != nil {
		return Entry{}, busy(&fs.PathError{Op: "inspect", Path: path, Err: err})
	}
	entry := Entry{
		Kind:     Regular,
		ReadOnly: data.FileAttributes&windows.FILE_ATTRIBUTE_READONLY != 0,
		Size:     int64(data.FileSizeHigh)<<32 | int64(data.FileSizeLow),
	}
	switch {
	case data.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0:
		entry.Kind = Link
	case data.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0:
		entry.Kind = Directory
	case data.FileAttributes&windows.FILE_ATTRIBUTE_DEVICE != 0:
		entry.Kind = Other
	}
	return entry, nil
}

// open opens an existing file or directory. Reparse points are opened themselves, never followed.
func open(path string, access, share uint32) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(extended(path))
	if err != nil {
		return nil, err
	}
	handle, err := windows.CreateFile(name, access, share, nil, windows.OPEN_EXISTING,
		windows.FILE_FLAG_OPEN_REPARSE_POINT|windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return nil, busy(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	return os.NewFile(uintptr(handle), path), nil
}

// ReadFile implements [Disk]. os.ReadFile would keep others from replacing the file meanwhile (golang/go 32088).
func (OS) ReadFile(path string) ([]byte, error) {
	file, err := open(path, windows.GENERIC_READ, shareAll)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // opened for reading
	data, err := io.ReadAll(file)
	return data, busy(err)
}

// CreateDirectory implements [Disk].
func (OS) CreateDirectory(path string) error {
	name, err := windows.UTF16PtrFromString(extended(path))
	if err != nil {
		return err
	}
	security, err := securityAttributes(administratorsOnlyDirectory)
	if err != nil {
		return err
	}
	if err := windows.CreateDirectory(name, security); err != nil {
		return &fs.PathError{Op: "create directory", Path: path, Err: err}
	}
	return nil
}

// Create implements [Disk].
func (OS) Create(path string) (File, error) {
	name, err := windows.UTF16PtrFromString(extended(path))
	if err != nil {
		return nil, err
	}
	security, err := securityAttributes(administratorsOnly)
	if err != nil {
		return nil, err
	}
	handle, err := windows.CreateFile(name, windows.GENERIC_WRITE, 0, security, windows.CREATE_NEW,
		windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: err}
	}
	return os.NewFile(uintptr(handle), path), nil
}

func securityAttributes(sddl string) (*windows.SecurityAttributes, error) {
	descriptor, err := windows.SecurityDescriptorFromString(sddl)
	if err != nil {
		return nil, err
	}
	attributes := &windows.SecurityAttributes{SecurityDescriptor: descriptor}
	attributes.Length = uint32(unsafe.Sizeof(*attributes))
	return attributes, nil
}

// Replace implements [Disk] with a rename of POSIX semantics: one step, which also works while readers that share
// deletion have the old file open. ReplaceFileW is not used although it keeps permissions: when it fails half-way, "the
// replaced file no longer exists" (Microsoft, ReplaceFileW, ERROR_UNABLE_TO_MOVE_REPLACEMENT), and a kubelet that
// starts without the file does not start. File systems that do not know the call (FAT, older ReFS) get MoveFileEx.
func (OS) Replace(from, to string) error {
	err := renameOver(from, to)
	if errors.Is(err, windows.ERROR_INVALID_PARAMETER) || errors.Is(err, windows.ERROR_NOT_SUPPORTED) ||
		errors.Is(err, windows.ERROR_INVALID_FUNCTION) || errors.Is(err, windows.ERROR_CALL_NOT_IMPLEMENTED) {
		err = moveOver(from, to)
	}
	if err == nil {
		return nil
	}
	err = &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) && heldOpen(to) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return busy(err)
}

// fileRenameInfo is FILE_RENAME_INFO (winbase.h) with room for the longest path.
type fileRenameInfo struct {
	flags          uint32
	rootDirectory  windows.Handle
	fileNameLength uint32
	fileName       [windows.MAX_LONG_PATH]uint16
}

func renameOver(from, to string) error {
	name, err := windows.UTF16FromString(extended(to))
	if err != nil {
		return err
	}
	info := &fileRenameInfo{
		flags:          windows.FILE_RENAME_REPLACE_IF_EXISTS | windows.FILE_RENAME_POSIX_SEMANTICS,
		fileNameLength: uint32(2 * (len(name) - 1)),
	}
	if copy(info.fileName[:], name) < len(name) {
		return windows.ERROR_FILENAME_EXCED_RANGE
	}
	size := unsafe.Offsetof(info.fileName) + uintptr(2*len(name))
	file, err := open(from, windows.DELETE|windows.SYNCHRONIZE, shareAll)
	if err != nil {
		return err
	}
	err = windows.SetFileInformationByHandle(windows.Handle(file.Fd()), windows.FileRenameInfoEx,
		(*byte)(unsafe.Pointer(info)), uint32(size))
	return errors.Join(err, file.Close())
}

func moveOver(from, to string) error {
	old, err := windows.UTF16PtrFromString(extended(from))
	if err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(extended(to))
	if err != nil {
		return err
	}
	return windows.MoveFileEx(old, name, windows.MOVEFILE_REPLACE_EXISTING|windows.MOVEFILE_WRITE_THROUGH)
}

// heldOpen tells "access denied" because somebody has the file open from "access denied" by its permissions.
func heldOpen(path string) bool {
	file, err := open(path, windows.DELETE, 0)
	if err != nil {
		return errors.Is(err, ErrBusy)
	}
	_ = file.Close() // opened for nothing but this question
	return false
}

// SyncDirectory implements [Disk]. NTFS flushes a directory that is opened for adding files; where that is refused, the
// rename is as durable as the file system's own journal makes it.
func (OS) SyncDirectory(path string) error {
	directory, err := open(path, windows.FILE_GENERIC_WRITE, shareAll)
	if err != nil {
		return nil //nolint:nilerr // best effort, see above
	}
	_ = windows.FlushFileBuffers(windows.Handle(directory.Fd())) // best effort, see above
	return directory.Close()
}

// openForRewrite opens the file for reading and writing in place, and keeps other writers out as long as it is open.
func openForRewrite(path string) (*os.File, error) {
	return open(path, windows.GENERIC_READ|windows.GENERIC_WRITE, windows.FILE_SHARE_READ|windows.FILE_SHARE_DELETE)
}

// busy marks the errors that say that somebody else has the file open.
func busy(err error) error {
	if errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// extended returns the form of a drive path that has no length limit and is taken literally (Microsoft, Naming Files,
// Paths, and Namespaces: the \\?\ prefix).
func extended(path string) string { return `\\?\` + path }
