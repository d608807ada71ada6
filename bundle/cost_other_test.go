//go:build !unix

package bundle_test

import (
	"testing"
	"time"
)

// processorTime stands in where the system does not count it: by the clock.
func processorTime(testing.TB) time.Duration { return time.Duration(time.Now().UnixNano()) }
