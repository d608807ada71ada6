package decade

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"k8s.io/utils/clock"
)

// birth is when every cluster is born.
func birth() time.Time { return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) }

const day = 24 * time.Hour

// world is one cluster in simulated time.
type world struct {
	history history
	now     time.Time
	queue   events
	steps   int
	jitters map[string]uint64

	mint     *mint
	api      *apiServer
	gate     *gate
	operator *operator
	courier  *courier
	jobs     *jobController
	nodes    []*machine
	view     view

	powered since
	told    []string
	stats   stats
	broken  *violation
}

// violation is a broken promise.
type violation struct {
	promise string
	about   string
	at      time.Time
}

// event is something that will happen.
type event struct {
	at    time.Time
	order int
	do    func()
}

// events are ordered by time, and by their making where that is the same.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop implements heap.Interface.
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// after has something done later.
func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// at has something done at a moment.
func (w *world) at(t time.Time, do func()) {
	w.steps++
	heap.Push(&w.queue, event{t, w.steps, do})
}

// between is a duration from lo to hi. It depends on the seed, on what it is for and on how many came before it for the
// same thing, and on nothing else: to leave one thing out of a history does not shuffle all others.
func (w *world) between(what string, lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.draw(what)%uint64(hi-lo+1))
}

// oneIn is true once in n times.
func (w *world) oneIn(what string, n uint64) bool { return w.draw(what)%n == 0 }

func (w *world) draw(what string) uint64 {
	w.jitters[what]++
	h := fnv.New64a()
	_, _ = h.Write([]byte(what + "/" + strconv.FormatUint(w.history.seed, 10) + "/" + strconv.FormatUint(w.jitters[what], 10))) // never fails
	sum := h.Sum64()
	sum ^= sum >> 33
	sum *= 0xff51afd7ed558ccd
	return sum ^ sum>>33
}

// tell notes what happened for whoever reads a broken history.
func (w *world) tell(format string, args ...any) {
	if w.history.verbose {
		w.told = append(w.told, w.now.Format("2006-01-02 15:04:05 ")+fmt.Sprintf(format, args...))
	}
}

// violate notes a broken promise; the first one ends the run.
func (w *world) violate(promise, format string, args ...any) {
	if w.broken == nil {
		w.broken = &violation{promise, fmt.Sprintf(format, args...), w.now}
		w.tell("BROKEN: %s: %s", promise, w.broken.about)
	}
}

// skewed is a party's own clock, which is some minutes off.
type skewed struct {
	w   *world
	off time.Duration
}

var _ clock.PassiveClock = skewed{}

// Now implements clock.PassiveClock.
func (s skewed) Now() time.Time { return s.w.now.Add(s.off) }

// Since implements clock.PassiveClock.
func (s skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

// since is a state that is there or not, and from when on.
type since struct {
	on   bool
	from time.Time
}

func (s *since) set(on bool, now time.Time) {
	if s.on != on {
		s.on, s.from = on, now
	}
}

// live runs the history to its end, or to the first broken promise.
func live(h history) *world {
	w := &world{history: h, now: birth(), jitters: map[string]uint64{}, mint: &mint{seed: h.seed}, stats: stats{}}
	w.powered.set(true, birth().Add(-day))
	w.api = newAPIServer(w)
	w.api.watch(w.seeSources)
	w.api.watch(w.seePods)
	w.gate = newGate(w)
	w.operator = newOperator(w)
	w.jobs = &jobController{w: w}
	w.api.watch(w.jobs.see)
	w.courier = newCourier(w)
	for i := range h.nodes {
		w.join(fmt.Sprintf("win-%d", i))
	}
	w.courier.start()
	for _, one := range h.acts {
		w.at(birth().Add(one.at), func() { w.act(one) })
	}
	end := birth().Add(h.length)
	for len(w.queue) > 0 && w.broken == nil {
		next := heap.Pop(&w.queue).(event)
		if next.at.After(end) {
			break
		}
		if next.at.After(w.now) {
			w.now = next.at
		}
		next.do()
		w.stats[steps]++
		w.check()
	}
	return w
}
