package dispatcher

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// trust is how long the dispatcher goes by what it wrote itself while its cache does not show it. After that it asks the
// API server again, by writing: a Job's name is taken or it is not.
const trust = 10 * time.Second

// memory bridges the moments in which a cache lags behind the dispatcher's own writes, so that it does not write twice.
// Nothing is lost with it: forgetting costs a refused write, or starts a back-off anew.
type memory struct {
	mu    sync.Mutex
	nodes map[string]recollection
}

type recollection struct {
	// job was created and may not be in the cache yet.
	job *Record
	// until is how long job is trusted.
	until time.Time
	// gone is the Job that was deleted and may still be in the cache.
	gone types.UID
	// attempt is carried from a Job that had to be gone before its successor could be made.
	attempt Attempt
	// template is what the attempts were made with.
	template string
	// refused counts refusals by the API server in a row.
	refused int
}

// record returns the node's Job as far as it is known.
func (m *memory) record(name string, cached *Record, now time.Time) *Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.nodes[name]
	if !ok {
		return cached
	}
	if cached != nil && cached.UID == r.gone {
		cached = nil
	}
	if r.job == nil {
		return cached
	}
	if caughtUp := cached != nil && cached.UID == r.job.UID; !caughtUp && now.Before(r.until) {
		return r.job
	}
	r.job = nil
	m.nodes[name] = r
	return cached
}

func (m *memory) update(name string, change func(*recollection)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nodes == nil {
		m.nodes = map[string]recollection{}
	}
	r := m.nodes[name]
	change(&r)
	m.nodes[name] = r
}

// created notes a Job that now exists. What was carried towards it is in its own record now.
func (m *memory) created(name string, job Record, now time.Time) {
	m.update(name, func(r *recollection) {
		*r = recollection{job: &job, until: now.Add(trust), gone: r.gone}
	})
}

// deleted notes that a Job is gone, or going for good.
func (m *memory) deleted(name string, uid types.UID) {
	m.update(name, func(r *recollection) { r.gone = uid })
}

// carry keeps the count of attempts while there is no Job to hold it.
func (m *memory) carry(name, template string, attempt Attempt) {
	m.update(name, func(r *recollection) { r.attempt, r.template = attempt, template })
}

// carried returns what was carried for Jobs of this template.
func (m *memory) carried(name, template string) (Attempt, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.nodes[name]
	return r.attempt, r.attempt.Number > 0 && r.template == template
}

// refused counts one more refusal and returns how many there were in a row.
func (m *memory) refused(name string) int {
	count := 0
	m.update(name, func(r *recollection) { r.refused++; count = r.refused })
	return count
}

func (m *memory) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, name)
}
