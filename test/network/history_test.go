package network

import (
	"context"
	"fmt"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"kubelet-ca-courier/dispatcher"
)

// change is one event about a Job.
type change struct {
	kind   watch.EventType
	record dispatcher.Record
}

// history holds everything that happened to Jobs, in order. It watches the API server itself and misses nothing.
type history struct {
	mu      sync.Mutex
	changes []change
	more    chan struct{}
	// order is that of the bundles, by hash.
	order map[string]int
}

// record follows the Jobs until the test ends.
func record(t *testing.T, client kubernetes.Interface) *history {
	t.Helper()
	h := &history{more: make(chan struct{}, 1), order: map[string]int{}}
	jobs := client.BatchV1().Jobs(dispatcher.JobsNamespace)
	list, err := jobs.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Fatalf("%d Jobs to begin with: %v", len(list.Items), err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	events, err := jobs.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool, 1)
	go func() {
		for event := range events.ResultChan() {
			job, ok := event.Object.(*batchv1.Job)
			if ctx.Err() != nil {
				break // the test is over
			}
			if !ok {
				t.Errorf("the test's own watch got %v", event.Object)
				continue
			}
			h.add(change{event.Type, dispatcher.ReadRecord(job)})
		}
		ended <- ctx.Err() == nil
	}()
	t.Cleanup(func() {
		stop()
		if early := <-ended; early {
			t.Error("the test's own watch ended early")
		}
	})
	return h
}

func (h *history) add(c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, c)
	select {
	case h.more <- struct{}{}:
	default:
	}
}

// published says that a bundle is newer than all before.
func (h *history) published(hash string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.order[hash] = len(h.order) + 1
}

// length is how many events there were.
func (h *history) length() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.changes)
}

// created counts the Jobs of a bundle that were made.
func (h *history) created(hash string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	count := 0
	for _, c := range h.changes {
		if c.kind == watch.Added && c.record.Hash == hash {
			count++
		}
	}
	return count
}

// check looks at everything from the beginning, and returns what was broken: two Jobs at once, one of an older bundle after one of
// a newer, one that was made again although it had succeeded. The deletions and creations since are counted by node.
func (h *history) check(since int) (writes map[string]int, faults []error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	writes = map[string]int{}
	live, newest, succeeded := map[string]bool{}, map[string]int{}, map[string]bool{}
	for i, c := range h.changes {
		node, job := c.record.NodeName, c.record.NodeName+" "+c.record.Hash
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("event %d, %s, bundle %.8s: %s", i, node, c.record.Hash, fmt.Sprintf(format, args...)))
		}
		switch c.kind {
		case watch.Added:
			order, known := h.order[c.record.Hash]
			switch {
			case !known:
				fault("nobody published it")
			case order < newest[node]:
				fault("it is older than one that was made before")
			}
			if live[node] {
				fault("there was a Job of that name")
			}
			if succeeded[job] {
				fault("it had succeeded before")
			}
			live[node], newest[node] = true, max(order, newest[node])
		case watch.Deleted:
			live[node] = false
		case watch.Modified:
			succeeded[job] = succeeded[job] || c.record.Phase == dispatcher.Succeeded
			continue
		default:
			fault("the test's own watch got %s", c.kind)
		}
		if i >= since {
			writes[node]++
		}
	}
	return writes, faults
}
