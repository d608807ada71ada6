package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"kubelet-ca-courier/hack/lab"
)

// clusters are those that run, or are being brought up, in this test binary.
var clusters registry

// registry knows every cluster from before its first process, so that a test binary which is interrupted leaves none behind.
type registry struct {
	mu     sync.Mutex
	listen sync.Once
	labs   map[*lab.Lab]bool
}

// add notes a cluster before it is brought up. From the first one on, interrupts end the clusters and then the test binary.
func (r *registry) add(l *lab.Lab) {
	r.listen.Do(func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		go r.interrupted(signals)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.labs == nil {
		r.labs = map[*lab.Lab]bool{}
	}
	r.labs[l] = true
}

// end ends a cluster and removes its files, once.
func (r *registry) end(l *lab.Lab, keepLogs bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.labs[l] {
		return nil
	}
	delete(r.labs, l)
	return l.End(keepLogs)
}

// bySignal is what a shell adds to the number of a signal that ended a program.
const bySignal = 128

// interrupted waits for a signal, ends every cluster and then the test binary. Whoever sends a second signal need not wait.
func (r *registry) interrupted(signals chan os.Signal) {
	received := <-signals
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	r.mu.Lock() // for good: what a test would still begin or end is no longer wanted
	for l := range r.labs {
		fmt.Fprintf(os.Stderr, "%s: ending the cluster in %s\n", received, l.Dir)
		if err := l.End(false); err != nil {
			fmt.Fprintf(os.Stderr, "could not end the cluster in %s: %v\n", l.Dir, err)
		}
	}
	code := 1
	if number, ok := received.(syscall.Signal); ok {
		code = bySignal + int(number)
	}
	os.Exit(code)
}

// bringUp brings up a cluster in a directory of its own. It returns the lab whenever there is something to end, also with an
// error.
func bringUp(ctx context.Context, plan lab.Plan) (*lab.Lab, error) {
	ctx, cancel := context.WithTimeout(ctx, bringUpLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "courier-lab-")
	if err != nil {
		return nil, err
	}
	l, err := lab.Open(ctx, dir, os.Stderr)
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	clusters.add(l)
	return l, l.BringUp(ctx, plan)
}
