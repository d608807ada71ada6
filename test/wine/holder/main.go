//go:build windows

// Command holder opens a file the way another process on a node may, says so, and keeps it open until its standard input
// ends.
//
//	holder FILE read|write SHARE     where SHARE is any of the letters r, w and d, or - for none
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/windows"
)

func main() {
	if err := hold(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func hold(path, access, sharing string) error {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	var share uint32
	for letter, flag := range map[string]uint32{
		"r": windows.FILE_SHARE_READ, "w": windows.FILE_SHARE_WRITE, "d": windows.FILE_SHARE_DELETE,
	} {
		if strings.Contains(sharing, letter) {
			share |= flag
		}
	}
	rights := uint32(windows.GENERIC_READ)
	if access == "write" {
		rights |= windows.GENERIC_WRITE
	}
	if _, err := windows.CreateFile(name, rights, share, nil, windows.OPEN_EXISTING, 0, 0); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "open")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
