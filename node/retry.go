package node

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// Back-off between tries: short at first, since a reader holds the file for an instant, and never long, since one that
// comes back all the time leaves gaps only.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// retry calls do until it succeeds, fails for good or the patience is used up, and returns what it returned last.
func (l *Lander) retry(ctx context.Context, again func(error) bool, do func() error) error {
	deadline := l.Now().Add(l.Patience)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := do()
		if err == nil || !again(err) || !l.Now().Add(pause).Before(deadline) {
			return err
		}
		if l.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// passing reports whether the error may pass. "Access denied" may: Windows says that of a file that somebody has open at
// the moment of a rename as well, and by the time one looks who it is, nobody has.
func passing(err error) bool { return errors.Is(err, ErrBusy) || errors.Is(err, fs.ErrPermission) }

// Sleep waits for the duration, or returns the context's error when that ends first.
func Sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
