// Package labtest is what tests on a local cluster have in common: bringing it up, waiting for conditions, and ending it, with
// the logs kept when a test has failed. An interrupt or SIGTERM ends it as well.
package labtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/test/need"
)

// bringUpLimit is generous: the real kubelet may have to be built.
const bringUpLimit = 30 * time.Minute

// patience bounds every wait for a condition; nothing takes that long unless it is broken.
const patience = 10 * time.Minute

// ending is how long before the test binary's own limit a wait gives up: beyond the limit nobody would end the cluster.
const ending = time.Minute

// New brings up a cluster for one test and ends it with the test.
func New(t *testing.T, plan lab.Plan) *lab.Lab {
	t.Helper()
	need.ControlPlane(t)
	l, err := bringUp(t.Context(), plan)
	if l != nil {
		t.Cleanup(func() {
			if err := clusters.end(l, t.Failed()); err != nil {
				t.Errorf("ending the cluster in %s: %v", l.Dir, err)
			}
		})
	}
	if err != nil {
		t.Fatalf("bring up the cluster: %v", err)
	}
	return l
}

// Suite is a cluster that the tests of a package share. It is brought up by the first test that asks for it.
type Suite struct {
	// Plan says what it is brought up with.
	Plan lab.Plan

	up  sync.Once
	lab *lab.Lab
	err error
}

// Lab returns the cluster.
func (s *Suite) Lab(t *testing.T) *lab.Lab {
	t.Helper()
	need.ControlPlane(t)
	s.up.Do(func() { s.lab, s.err = bringUp(context.Background(), s.Plan) })
	if s.err != nil {
		t.Fatalf("bring up the cluster: %v", s.err)
	}
	return s.lab
}

// Main runs the tests and ends the cluster. It is for TestMain, and returns the exit code.
func (s *Suite) Main(m *testing.M) int {
	code := m.Run()
	if s.lab == nil {
		return code
	}
	if err := clusters.end(s.lab, code != 0); err != nil {
		fmt.Fprintf(os.Stderr, "could not end the cluster in %s: %v\n", s.lab.Dir, err)
		return 1
	}
	return code
}

// Eventually tries until the attempt succeeds; its last error is the failure. It waits in clean-up functions as well.
func Eventually(t *testing.T, what string, attempt func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if limit, ok := t.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, limit.Add(-ending))
		defer cancel()
	}
	for {
		err := attempt(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Must stops the test where what should work does not.
func Must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
