package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// Temporary files are named after the destination, so that a later landing knows them for what they are, and carry a
// random number, so that a landing never writes into a file that another one is about to rename.
const temporaryInfix = ".courier-"

// replace puts the wanted bytes in the destination's place, whole or not at all.
func (l *landing) replace(ctx context.Context) *failure {
	directory, _ := splitPath(l.task.Destination)
	temporary := fmt.Sprintf("%s%s%08x", l.task.Destination, temporaryInfix, l.Random())
	err := l.fill(temporary)
	if err == nil && l.result.Outcome == Replaced {
		err = l.retry(ctx, passing, func() error { return l.Disk.CopyPermissions(l.task.Destination, temporary) })
	}
	if err == nil {
		err = l.retry(ctx, passing, func() error { return l.Disk.Replace(temporary, l.task.Destination) })
	}
	if err != nil {
		if left := l.Disk.Remove(temporary); left != nil && !errors.Is(left, fs.ErrNotExist) {
			l.warn("left behind: " + temporary)
		}
		return diskFailure(fmt.Errorf("replace the destination: %w", err))
	}
	if err := l.Disk.SyncDirectory(directory); err != nil {
		return diskFailure(fmt.Errorf("flush the destination's directory: %w", err))
	}
	return nil
}

// fill creates the temporary file with the wanted bytes, on the disk and not just in its cache.
func (l *landing) fill(path string) error {
	file, err := l.Disk.Create(path)
	if err != nil {
		return err
	}
	if _, err = file.Write(l.want); err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// removeLeftOvers removes the temporary files of landings that were stopped. One that cannot be removed does no harm
// and is only reported.
func (l *landing) removeLeftOvers() *failure {
	directory, base := splitPath(l.task.Destination)
	names, err := l.Disk.List(directory)
	if err != nil {
		return diskFailure(fmt.Errorf("list the destination's directory: %w", err))
	}
	for _, name := range names {
		suffix, ours := strings.CutPrefix(name, base+temporaryInfix)
		if !ours || len(suffix) != 8 || strings.Trim(suffix, "0123456789abcdef") != "" {
			continue
		}
		path := strings.TrimSuffix(directory, separator) + separator + name
		if err := l.Disk.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.warn("cannot remove what an earlier landing left: " + err.Error())
		}
	}
	return nil
}
