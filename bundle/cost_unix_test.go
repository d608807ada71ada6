//go:build unix

package bundle_test

import (
	"syscall"
	"testing"
	"time"
)

// processorTime is how long this process has kept processors busy.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
