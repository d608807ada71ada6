package node

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// cleanWindowsPath returns the path in the one form that every Windows call understands alike, or says why the path is
// not a place for the file. Only a full path on a drive will do: anything else depends on the working directory of the
// moment or leads to another machine. Names that Windows would quietly change are refused, since the kubelet would then
// read another file than the one written here (Microsoft, Naming Files, Paths, and Namespaces).
func cleanWindowsPath(name string) (string, error) {
	slashed := strings.ReplaceAll(name, `\`, "/")
	switch {
	case strings.HasPrefix(slashed, "//"):
		return "", errors.New("the path is on a network or in a device namespace: give it as on a drive, like C:\\k\\kubelet-ca.crt")
	case len(slashed) < 3 || !isLetter(slashed[0]) || slashed[1] != ':' || slashed[2] != '/':
		return "", errors.New("the path is relative or lacks a drive: give it in full, like C:\\k\\kubelet-ca.crt")
	}
	clean := path.Clean(slashed[2:])
	if clean == "/" {
		return "", errors.New("the path names a drive, not a file")
	}
	for part := range strings.SplitSeq(clean[1:], "/") {
		if err := checkWindowsName(part); err != nil {
			return "", err
		}
	}
	return strings.ToUpper(slashed[:1]) + ":" + strings.ReplaceAll(clean, "/", `\`), nil
}

func checkWindowsName(name string) error {
	if strings.HasSuffix(name, ".") || strings.HasSuffix(name, " ") {
		return fmt.Errorf("the path has a name that ends in a dot or a space, which Windows drops: %q", name)
	}
	for _, r := range name {
		if r < ' ' || strings.ContainsRune(`<>:"|?*`, r) {
			return fmt.Errorf("the path has a character that no file name can have: %q", name)
		}
	}
	base, _, _ := strings.Cut(strings.ToUpper(name), ".")
	switch base = strings.TrimRight(base, " "); {
	case base == "CON", base == "PRN", base == "AUX", base == "NUL", base == "CONIN$", base == "CONOUT$",
		len(base) == 4 && (base[:3] == "COM" || base[:3] == "LPT") && base[3] >= '0' && base[3] <= '9':
		return fmt.Errorf("the path names a device: %q", name)
	}
	return nil
}

// cleanUnixPath is the same for any other system.
func cleanUnixPath(name string) (string, error) {
	if !strings.HasPrefix(name, "/") {
		return "", errors.New("the path is relative: give it in full")
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("the path has a character that no file name can have")
	}
	clean := path.Clean(name)
	if clean == "/" {
		return "", errors.New("the path names the root directory, not a file")
	}
	return clean, nil
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
