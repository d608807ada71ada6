package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"kubelet-ca-courier/bundle"
)

// errMismatch says that a file is there but is not the bundle that was asked for.
var errMismatch = errors.New("the mounted file is not the bundle that was asked for")

// readSource returns the bundle that was asked for, byte for byte and parsed.
//
// The kubelet swaps a ConfigMap volume's ..data link in two steps on Windows, so for a moment nothing is there: that is
// waited out. A file that is there with another hash is never used: the volume's path is a directory in C:\, where
// ordinary users may create directories, and on a runtime that cannot bind paths theirs would come first.
func (l *Lander) readSource(ctx context.Context, task Task) ([]byte, *bundle.Bundle, *failure) {
	want := strings.ToLower(task.SHA256)
	var data []byte
	err := l.retry(ctx, mayAppear, func() (err error) {
		data, err = l.readCandidates(MountedPaths(task.Source, l.MountPoint), want)
		return err
	})
	switch {
	case errors.Is(err, errMismatch):
		return nil, nil, fail(ExitSourceMismatch, err, "compare --sha256 with the snapshot ConfigMap that the Job mounts")
	case err != nil:
		return nil, nil, fail(ExitSourceMissing, fmt.Errorf("read the mounted bundle: %w", err),
			"the volume must be mounted at the directory of --source, or under $"+MountPointVariable)
	}
	parsed, findings := bundle.Parse(data)
	if len(findings) > 0 {
		return nil, nil, fail(ExitSourceMismatch, fmt.Errorf("the mounted bundle is not well-formed: %s", findings[0].Message), "")
	}
	return data, parsed, nil
}

// mayAppear reports whether the bundle may still turn up: unless every place holds another file.
func mayAppear(err error) bool { return !errors.Is(err, errMismatch) || errors.Is(err, fs.ErrNotExist) }

// readCandidates returns the first file with the wanted hash, or what is wrong with each.
func (l *Lander) readCandidates(paths []string, want string) ([]byte, error) {
	var failures []error
	for _, path := range paths {
		data, err := l.Disk.ReadFile(path)
		if err == nil {
			sum := sha256.Sum256(data)
			got := hex.EncodeToString(sum[:])
			if got == want {
				return data, nil
			}
			err = fmt.Errorf("%w: the SHA-256 of %s is %s, not %s", errMismatch, path, got, want)
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

// MountedPaths returns where a file that the Job mounts may be: at its own path, or below the directory in which the
// runtime put the image, when it cannot bind paths.
func MountedPaths(path, mountPoint string) []string {
	if mountPoint == "" {
		return []string{path}
	}
	below := path
	if len(below) > 1 && isLetter(below[0]) && below[1] == ':' {
		below = below[2:]
	}
	return []string{path, strings.TrimRight(mountPoint, `\/`) + separator + strings.TrimLeft(below, `\/`)}
}
