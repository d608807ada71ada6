package dispatcher

import (
	"sync"
	"time"
)

// Lacking tells of the Ready nodes that lack the bundle which is being delivered. A node that holds it and is only being
// looked at again is none of them, nor is one that is away: it gets the bundle when it is back.
type Lacking struct {
	// Nodes is how many there are.
	Nodes int
	// Since is when the one that has waited longest was first to get the bundle; zero when there is none.
	Since time.Time
}

// lackingSince says since when the node lacks the bundle; false when it does not. Observe mode brings nothing, so that there
// is nothing to wait for.
func lackingSince(t Target, n Node, job *Record) (time.Time, bool) {
	if t.Settings.Mode == Observe || !n.Ready || holds(t, n, job) {
		return time.Time{}, false
	}
	if n.Created.After(t.Snapshot.Accepted) {
		return n.Created, true
	}
	return t.Snapshot.Accepted, true
}

// holds reports whether the node was seen to hold the bundle, by this Job or by one before it, and nobody has seen otherwise.
func holds(t Target, n Node, job *Record) bool {
	if job == nil || job.NodeName != n.Name || superseded(t, n, job) != "" {
		return false
	}
	return job.Phase == Succeeded || job.Held && observed(job) == ""
}

// waiting holds the nodes that lack the bundle, by name, and since when.
type waiting struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// set notes where a node stands.
func (w *waiting) set(name string, since time.Time, lacks bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !lacks {
		delete(w.since, name)
		return
	}
	if w.since == nil {
		w.since = map[string]time.Time{}
	}
	w.since[name] = since
}

// sum counts the nodes, and finds the one that has waited longest.
func (w *waiting) sum() Lacking {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := Lacking{Nodes: len(w.since)}
	for _, since := range w.since {
		if all.Since.IsZero() || since.Before(all.Since) {
			all.Since = since
		}
	}
	return all
}
