package node

import (
	"io/fs"
	"unsafe"

	"golang.org/x/sys/windows"
)

// CopyPermissions implements [Disk] with the DACL, entry by entry. SetSecurityInfo would work out the inherited entries
// anew; here what the destination had is what it keeps. The owner stays SYSTEM or Administrators: an owner may always
// change the permissions.
func (OS) CopyPermissions(from, to string) error {
	source, err := open(from, windows.READ_CONTROL, shareAll)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // opened for reading
	descriptor, err := windows.GetSecurityInfo(windows.Handle(source.Fd()), windows.SE_FILE_OBJECT,
		windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return &fs.PathError{Op: "read the permissions of", Path: from, Err: err}
	}
	target, err := open(to, windows.WRITE_DAC, shareAll)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // nothing was written through it
	if err := windows.SetKernelObjectSecurity(windows.Handle(target.Fd()), windows.DACL_SECURITY_INFORMATION,
		descriptor); err != nil {
		return &fs.PathError{Op: "set the permissions of", Path: to, Err: err}
	}
	return nil
}

// OpenToUsers implements [Disk]: does the DACL let a group that holds ordinary users add files to the directory, delete
// them from it or change its permissions?
func (OS) OpenToUsers(directory string) (bool, error) {
	handle, err := open(directory, windows.READ_CONTROL, shareAll)
	if err != nil {
		return false, err
	}
	defer handle.Close() //nolint:errcheck // opened for reading
	descriptor, err := windows.GetSecurityInfo(windows.Handle(handle.Fd()), windows.SE_FILE_OBJECT,
		windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return false, &fs.PathError{Op: "read the permissions of", Path: directory, Err: err}
	}
	acl, _, err := descriptor.DACL()
	if err != nil || acl == nil {
		return true, nil //nolint:nilerr // no DACL at all: everybody may do everything
	}
	for i := range uint32(acl.AceCount) {
		var entry *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(acl, i, &entry); err != nil {
			return false, &fs.PathError{Op: "read the permissions of", Path: directory, Err: err}
		}
		if letsUsersWrite(entry) {
			return true, nil
		}
	}
	return false, nil
}

const (
	fileAddFile     = 0x0002 // FILE_ADD_FILE (winnt.h)
	fileDeleteChild = 0x0040 // FILE_DELETE_CHILD
	anyChange       = fileAddFile | fileDeleteChild | windows.WRITE_DAC | windows.WRITE_OWNER |
		windows.GENERIC_WRITE | windows.GENERIC_ALL
)

// letsUsersWrite reports whether the entry grants any change of the directory itself to ordinary users.
func letsUsersWrite(entry *windows.ACCESS_ALLOWED_ACE) bool {
	if entry.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || entry.Header.AceFlags&windows.INHERIT_ONLY_ACE != 0 ||
		entry.Mask&anyChange == 0 {
		return false
	}
	holder := (*windows.SID)(unsafe.Pointer(&entry.SidStart))
	for _, group := range []windows.WELL_KNOWN_SID_TYPE{
		windows.WinWorldSid, windows.WinAuthenticatedUserSid, windows.WinBuiltinUsersSid, windows.WinInteractiveSid,
		windows.WinBuiltinGuestsSid, windows.WinAnonymousSid,
	} {
		if holder.IsWellKnown(group) {
			return true
		}
	}
	return false
}
