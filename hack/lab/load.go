package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Load is a number of writers that change the guarded ConfigMap over and over. The API server has the gate review each change,
// and the gate has no objection to any, so that a write which fails is a review that was dropped.
type Load struct {
	writes  atomic.Int64
	stop    chan struct{}
	once    sync.Once
	writers sync.WaitGroup
	mu      sync.Mutex
	failed  []error
}

// StartLoad begins to write. Each writer waits for the pause between two writes, and goes on after a failure.
func (l *Lab) StartLoad(ctx context.Context, writers int, pause time.Duration) (*Load, error) {
	client, _, err := l.Client()
	if err != nil {
		return nil, err
	}
	load := &Load{stop: make(chan struct{})}
	for writer := range writers {
		load.writers.Go(func() { load.write(ctx, client, writer, pause) })
	}
	return load, nil
}

// afterFailure keeps a writer whose writes fail from filling the memory with its failures.
const afterFailure = 100 * time.Millisecond

// write writes until the load is stopped.
func (load *Load) write(ctx context.Context, client kubernetes.Interface, writer int, pause time.Duration) {
	for wait := pause; ; {
		select {
		case <-load.stop:
			return
		case <-time.After(wait):
		}
		wait = pause
		serial := load.writes.Load()
		patch, err := json.Marshal(object{"metadata": object{"annotations": object{
			fmt.Sprintf("example.com/writer-%d", writer): fmt.Sprint(serial),
		}}})
		if err == nil {
			_, err = client.CoreV1().ConfigMaps(GuardedNamespace).Patch(ctx, GuardedName, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			load.mu.Lock()
			load.failed = append(load.failed, fmt.Errorf("writer %d, after %d writes of all: %w", writer, serial, err))
			load.mu.Unlock()
			wait = afterFailure
			continue
		}
		load.writes.Add(1)
	}
}

// Writes is how many writes have succeeded.
func (load *Load) Writes() int64 { return load.writes.Load() }

// Err joins what has failed so far.
func (load *Load) Err() error {
	load.mu.Lock()
	defer load.mu.Unlock()
	const most = 10
	failed := load.failed
	if more := len(failed) - most; more > 0 {
		failed = append(failed[:most:most], fmt.Errorf("and %d more", more))
	}
	return errors.Join(failed...)
}

// Stop ends the writers, waits for the last write and returns what has failed.
func (load *Load) Stop() error {
	load.once.Do(func() { close(load.stop) })
	load.writers.Wait()
	return load.Err()
}
