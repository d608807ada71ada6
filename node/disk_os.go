package node

import (
	"errors"
	"os"
)

// List implements [Disk].
func (OS) List(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// Remove implements [Disk].
func (OS) Remove(path string) error { return busy(os.Remove(path)) }

// Rewrite implements [Disk]. Other writers are kept out between the reading and the writing where the system can do
// that, so the byte is never another than the file had.
func (OS) Rewrite(path string) error {
	file, err := openForRewrite(path)
	if err != nil {
		return err
	}
	first := make([]byte, 1)
	if _, err = file.ReadAt(first, 0); err == nil {
		_, err = file.WriteAt(first, 0)
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}
