package dispatcher

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// podPoll is how often a node is looked at whose pod of a deleted Job is still ending; pods are not watched.
const podPoll = 3 * time.Second

// Delivery gives one node its one Job.
type Delivery struct {
	// Client reads nodes and Jobs from caches, and writes.
	Client client.Client
	// Reader reads from the API server.
	Reader client.Reader
	// Namespace is where the Jobs are.
	Namespace string
	// Clock tells the time.
	Clock clock.PassiveClock
	// Report tells people.
	Report *Report
	// Enqueue has nodes reconciled soon.
	Enqueue func(nodes ...string)

	round  atomic.Pointer[round]
	memory memory
	// newest is the highest sequence of a Job that was found to be of a newer bundle than the round's.
	newest atomic.Int64
}

// round is the delivery of one target. A new target gets a new round: a worker that still holds the old one cannot
// disturb the new one's counts.
type round struct {
	Target
	pace *Pace
	// waiting are the nodes that lack the bundle.
	waiting waiting
	// key tells rounds apart.
	key string
	// history says that another bundle was delivered before, which a pod without a Job might still be writing.
	history bool
	// finished says that the end of the round was told, or that there was nothing to do from the start.
	finished atomic.Bool
	// delivered and failed say that the first node to do so was told.
	delivered, failed atomic.Bool
}

// Begin starts the delivery of a target, unless it is the one already under way, and reports whether it did. It looks at
// all nodes once; after that only events count.
func (d *Delivery) Begin(ctx context.Context, t Target, history bool) (begun bool, err error) {
	key := digest(t.Template, t.Settings, t.Snapshot.Sequence, history)
	if before := d.round.Load(); before != nil && before.key == key {
		return false, nil
	}
	nodes, jobs := &corev1.NodeList{}, &batchv1.JobList{}
	if err := d.Client.List(ctx, nodes); err != nil {
		return false, fmt.Errorf("list nodes: %w", err)
	}
	if err := d.Client.List(ctx, jobs, client.InNamespace(d.Namespace)); err != nil {
		return false, fmt.Errorf("list Jobs: %w", err)
	}
	decisions := Survey(t, nodes.Items, jobs.Items, d.Clock.Now())
	names, nodeStates := make([]string, 0, len(decisions)), make(map[string]State, len(decisions))
	r := &round{Target: t, key: key, history: history}
	for _, status := range decisions {
		names = append(names, status.Node.Name)
		nodeStates[status.Node.Name] = status.Decision.State
		d.lacks(r, status.Node, status.Record)
	}
	r.pace = NewPace(t.Settings, nodeStates)
	r.finished.Store(r.pace.Active() == 0)
	d.round.Store(r)
	d.Enqueue(names...)
	return true, d.enqueueNewcomers(ctx, nodeStates)
}

// enqueueNewcomers enqueues the nodes that came to be served while the round was being made: their events went to the round
// before, or to none.
func (d *Delivery) enqueueNewcomers(ctx context.Context, known map[string]State) error {
	nodes := &corev1.NodeList{}
	if err := d.Client.List(ctx, nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		if _, found := known[nodes.Items[i].Name]; !found {
			d.Enqueue(nodes.Items[i].Name)
		}
	}
	return nil
}

// Counts returns the number of nodes in each state.
func (d *Delivery) Counts() map[State]int {
	counts := map[State]int{}
	r := d.round.Load()
	for _, state := range states {
		counts[state] = 0
		if r != nil {
			counts[state] = r.pace.Count(state)
		}
	}
	return counts
}

// Lacking tells of the nodes that lack the bundle.
func (d *Delivery) Lacking() Lacking {
	r := d.round.Load()
	if r == nil {
		return Lacking{}
	}
	return r.waiting.sum()
}

// lacks notes whether a node lacks the bundle, as its Job has it, or while there is none, as the Job before had it.
func (d *Delivery) lacks(r *round, n Node, record *Record) {
	since, lacks := lackingSince(r.Target, n, record)
	if record == nil {
		carried, ok := d.memory.carried(n.Name, r.Template)
		lacks = lacks && (!ok || !carried.Held)
	}
	r.waiting.set(n.Name, since, lacks)
}

// Reconcile looks at one node and does what it needs.
func (d *Delivery) Reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	r := d.round.Load()
	if r == nil {
		return reconcile.Result{}, nil
	}
	object := &corev1.Node{}
	err := d.Client.Get(ctx, client.ObjectKey{Name: name}, object)
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return reconcile.Result{}, fmt.Errorf("read the node: %w", err)
	}
	n := ReadNode(object)
	if gone || !served(r.Settings, object) {
		d.memory.forget(name)
		r.waiting.set(name, time.Time{}, false)
		d.Enqueue(r.pace.Forget(name)...)
		return reconcile.Result{}, nil
	}
	record, err := d.record(ctx, name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if record != nil && record.NodeName == n.Name && record.Sequence > r.Snapshot.Sequence {
		d.overtaken(record.Sequence)
	}
	d.lacks(r, n, record)
	decision := Decide(r.Target, n, record, d.Clock.Now())
	if decision.Paced && !r.pace.Admit(name, decision.Attempt) {
		return reconcile.Result{}, nil // its turn comes
	}
	outcome, err := d.act(ctx, r, n, record, decision)
	if err != nil {
		if decision.Paced { // it is asked for again soon; meanwhile another node may go first
			_, turn := r.pace.Set(name, Queued)
			d.Enqueue(turn...)
		}
		return reconcile.Result{}, err
	}
	before, turn := r.pace.Set(name, outcome.state)
	d.Enqueue(turn...)
	d.tell(ctx, r, n, record, before, outcome)
	return reconcile.Result{RequeueAfter: outcome.after}, nil
}

// overtaken notes that there is a Job of a newer bundle, and has the snapshots read again: either another dispatcher leads
// now, and its snapshot is there, or the snapshot was deleted.
func (d *Delivery) overtaken(sequence int64) {
	for {
		before := d.newest.Load()
		if sequence <= before || d.newest.CompareAndSwap(before, sequence) {
			break
		}
	}
	d.Enqueue("")
}

// served reports whether the settings cover the node, and whether it is there to stay.
func served(s Settings, n *corev1.Node) bool {
	return n.DeletionTimestamp == nil && s.Selector().Matches(ReadNode(n).Labels)
}

// record returns the Job of the node's name, if any.
func (d *Delivery) record(ctx context.Context, name string) (*Record, error) {
	job := &batchv1.Job{}
	err := d.Client.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: NodeKey(name)}, job)
	if apierrors.IsNotFound(err) {
		return d.memory.record(name, nil, d.Clock.Now()), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Job: %w", err)
	}
	record := ReadRecord(job)
	return d.memory.record(name, &record, d.Clock.Now()), nil
}

// outcome is where a node stands after the writes.
type outcome struct {
	state State
	after time.Duration
	// refusal is why the API server would not have the Job, or show the pods; times is how often in a row it would not.
	refusal error
	times   int
}

// act writes what was decided.
func (d *Delivery) act(ctx context.Context, r *round, n Node, record *Record, decision Decision) (outcome, error) {
	switch decision.Action {
	case Remove:
		return d.remove(ctx, r, n, record, decision)
	case Replace:
		if err := d.delete(ctx, record, metav1.DeletePropagationBackground); err != nil {
			return outcome{}, err
		}
		d.memory.deleted(record.NodeName, record.UID)
		return d.create(ctx, r, n, attempt(r.Target, n, record, decision))
	case Create:
		next := attempt(r.Target, n, nil, decision)
		if carried, ok := d.memory.carried(n.Name, r.Template); ok {
			next = carried
		}
		switch running, err := d.stray(ctx, r, n); {
		case refused(err):
			return d.blocked(r, n, next, err), nil
		case running || err != nil:
			return outcome{state: Removing, after: podPoll}, err
		}
		return d.create(ctx, r, n, next)
	default:
		return outcome{state: decision.State, after: decision.After}, nil
	}
}

// attempt is the next one after the given record.
func attempt(t Target, n Node, record *Record, decision Decision) Attempt {
	a := Attempt{Number: decision.Attempt, Cause: decision.Cause, Held: holds(t, n, record)}
	if decision.Cause == CauseRetry {
		a.LastFailure = record.Failure()
	}
	return a
}

// remove deletes a Job whose pod may still run. In the foreground: the Job's name is free only when its pod is gone.
func (d *Delivery) remove(ctx context.Context, r *round, n Node, record *Record, decision Decision) (outcome, error) {
	if err := d.delete(ctx, record, metav1.DeletePropagationForeground); err != nil {
		return outcome{}, err
	}
	next := attempt(r.Target, n, record, decision)
	next.Number = max(next.Number, 1)
	d.memory.carry(record.NodeName, r.Template, next)
	return outcome{state: Removing, after: trust}, nil
}

// delete deletes exactly the Job that was looked at.
func (d *Delivery) delete(ctx context.Context, record *Record, how metav1.DeletionPropagation) error {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: record.Name}}
	err := d.Client.Delete(ctx, job, client.Preconditions{UID: &record.UID}, client.PropagationPolicy(how))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Job %s: %w", record.Name, err)
	}
	return nil
}

// stray reports whether a pod for the node still runs although its Job is gone: someone deleted the Job, and not its pod
// with it. The question is asked only where the answer matters and the Job's record cannot give it.
func (d *Delivery) stray(ctx context.Context, r *round, n Node) (bool, error) {
	if !r.history {
		return false, nil
	}
	pods := &corev1.PodList{}
	err := d.Reader.List(ctx, pods, client.InNamespace(d.Namespace), client.MatchingLabels{LabelNode: NodeKey(n.Name)})
	if err != nil {
		return false, fmt.Errorf("list the node's pods: %w", err)
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			return true, nil
		}
	}
	return false, nil
}

// create makes the Job. A name that is taken means that this, or another, dispatcher made it already: that Job is looked
// at as if it had been there from the start.
func (d *Delivery) create(ctx context.Context, r *round, n Node, a Attempt) (outcome, error) {
	job := r.Job(n, a)
	err := d.Client.Create(ctx, job)
	switch {
	case err == nil:
		d.memory.created(n.Name, ReadRecord(job), d.Clock.Now())
		d.Report.created(a.Cause)
		return outcome{state: InFlight, after: trust}, nil
	case apierrors.IsAlreadyExists(err):
		return d.adopt(ctx, r, n)
	case refused(err):
		return d.blocked(r, n, a, err), nil
	default:
		return outcome{}, fmt.Errorf("create Job %s: %w", job.Name, err)
	}
}

// blocked notes that the API server refused what the attempt needs, which is tried again less and less often.
func (d *Delivery) blocked(r *round, n Node, a Attempt, refusal error) outcome {
	d.memory.carry(n.Name, r.Template, a)
	times := d.memory.refused(n.Name)
	return outcome{state: Blocked, after: retryAfter(n.Name, times, nil), refusal: refusal, times: times}
}

// adopt decides again, on the Job that has the name. It writes nothing: what is to be done comes with the next look.
func (d *Delivery) adopt(ctx context.Context, r *round, n Node) (outcome, error) {
	job := &batchv1.Job{}
	key := client.ObjectKey{Namespace: d.Namespace, Name: NodeKey(n.Name)}
	if err := d.Reader.Get(ctx, key, job); err != nil {
		return outcome{}, fmt.Errorf("read the Job that exists already: %w", err)
	}
	record := ReadRecord(job)
	decision := Decide(r.Target, n, &record, d.Clock.Now())
	if !record.Deleting && record.NodeName == n.Name {
		d.memory.created(n.Name, record, d.Clock.Now())
	}
	if decision.Action != Nothing {
		decision.After = time.Millisecond
	}
	return outcome{state: decision.State, after: decision.After}, nil
}

// refused reports whether the API server will not have the Job, now or for long: a quota, a limit, a policy, a missing
// namespace. Asking again at once would only add load.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)
}
