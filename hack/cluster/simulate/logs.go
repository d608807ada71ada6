package simulate

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"
)

// seekTail moves to where the last lines begin.
func seekTail(file *os.File, lines int) error {
	data, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	at := len(bytes.TrimSuffix(data, []byte("\n")))
	for ; lines > 0 && at >= 0; lines-- {
		at = bytes.LastIndexByte(data[:at], '\n')
	}
	_, err = file.Seek(int64(at+1), io.SeekStart)
	return err
}

// follower reads a file and waits for more at its end, until the pod is done or the reader gone.
type follower struct {
	*os.File
	done, gone <-chan struct{}
}

func (f *follower) Read(p []byte) (int, error) {
	for last := false; ; {
		n, err := f.File.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) || last {
			return n, err
		}
		select {
		case <-f.gone:
			return 0, io.EOF
		case <-f.done:
			last = true // what was written before the end is still to be read
		case <-time.After(100 * time.Millisecond):
		}
	}
}
