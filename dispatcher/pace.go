package dispatcher

import "sync"

// Pace decides which node may start. It holds one state per node and counts them as they change, so that what one event
// costs does not depend on the number of nodes. It is rebuilt from the caches for every rollout and at every start.
//
// In flight at once are at most min(maxParallel, 1 + succeeded): the first node is the canary, then 2, 4, 8 and so on.
// A node that fails, or is [Slow], leaves its place to the next.
type Pace struct {
	mu        sync.Mutex
	max       int
	slowStart bool
	nodes     map[string]State
	counts    map[State]int
	fresh     queue
	retries   queue
}

// NewPace returns a pace for nodes in the given states.
func NewPace(s Settings, nodes map[string]State) *Pace {
	p := &Pace{
		max:       s.MaxParallel,
		slowStart: *s.SlowStart,
		nodes:     nodes,
		counts:    map[State]int{},
	}
	for _, state := range nodes {
		p.counts[state]++
	}
	return p
}

// Admit gives the node a place and reports true, or makes it wait and reports false. Nodes that have not been tried yet
// go before those that have failed.
func (p *Pace) Admit(name string, attempt int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nodes[name] == InFlight {
		return true
	}
	p.set(name, Queued)
	if p.room() > 0 {
		p.set(name, InFlight)
		return true
	}
	if attempt > 1 {
		p.retries.push(name)
	} else {
		p.fresh.push(name)
	}
	return false
}

// Set records the node's state. It returns the state before, and the nodes whose turn has come: their place is kept.
func (p *Pace) Set(name string, state State) (before State, turn []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before = p.nodes[name]
	p.set(name, state)
	return before, p.next()
}

// Forget drops a node that is not served any more, and returns the nodes whose turn has come.
func (p *Pace) Forget(name string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state, ok := p.nodes[name]; ok {
		p.counts[state]--
		delete(p.nodes, name)
	}
	return p.next()
}

// Count returns the number of nodes in a state.
func (p *Pace) Count(state State) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[state]
}

// Active returns the number of nodes that the rollout is still at work on.
func (p *Pace) Active() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[InFlight] + p.counts[Slow] + p.counts[Queued] + p.counts[Removing]
}

func (p *Pace) set(name string, state State) {
	if before, ok := p.nodes[name]; ok {
		p.counts[before]--
	}
	p.nodes[name] = state
	p.counts[state]++
}

// room returns how many more may start.
func (p *Pace) room() int {
	room := len(p.nodes)
	if p.slowStart {
		done := p.counts[Delivered] + p.counts[WouldChange] + p.counts[WouldRemove]
		room = 1 + done - p.counts[InFlight]
	}
	if p.max > 0 {
		room = min(room, p.max-p.counts[InFlight]-p.counts[Slow])
	}
	return room
}

// next takes as many nodes from the queues as there is room for, and keeps their places.
func (p *Pace) next() []string {
	var turn []string
	for room := p.room(); room > 0; room-- {
		name, ok := p.pop()
		if !ok {
			break
		}
		p.set(name, InFlight)
		turn = append(turn, name)
	}
	return turn
}

// pop returns the next node that still waits. A node that no longer does was left in the queue, and is passed over.
func (p *Pace) pop() (string, bool) {
	for _, q := range []*queue{&p.fresh, &p.retries} {
		for {
			name, ok := q.pop()
			if !ok {
				break
			}
			if p.nodes[name] == Queued {
				return name, true
			}
		}
	}
	return "", false
}

// queue is first in, first out, and holds every name once.
type queue struct {
	names  []string
	queued map[string]bool
}

func (q *queue) push(name string) {
	if q.queued[name] {
		return
	}
	if q.queued == nil {
		q.queued = map[string]bool{}
	}
	q.queued[name] = true
	q.names = append(q.names, name)
}

func (q *queue) pop() (string, bool) {
	if len(q.names) == 0 {
		return "", false
	}
	name := q.names[0]
	q.names = q.names[1:]
	delete(q.queued, name)
	return name, true
}
