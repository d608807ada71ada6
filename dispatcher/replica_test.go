package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// replica is one dispatcher with its caches.
type replica struct {
	w        *world
	rollout  *Rollout
	delivery *Delivery
	// nodes and jobs are its caches.
	nodes map[string]corev1.Node
	jobs  map[string]batchv1.Job
	edits int
	queue map[string]bool
	timer map[string]time.Time
}

// start adds a dispatcher that leads, with caches that are up to date.
func (w *world) start() *replica {
	w.t.Helper()
	r := &replica{w: w, queue: map[string]bool{}, timer: map[string]time.Time{}}
	c := &cached{WithWatch: interceptor.NewClient(w.api, interceptor.Funcs{Create: r.create, Delete: r.remove, Update: r.update}), replica: r}
	r.delivery = &Delivery{Client: c, Reader: w.api, Namespace: JobsNamespace, Clock: w.clock, Enqueue: r.enqueue}
	metrics, err := NewMetrics(prometheus.NewRegistry(), r.delivery.Counts, r.delivery.Lacking)
	w.must(err)
	r.delivery.Report = NewReport(c, w.clock, metrics, "test")
	r.rollout = &Rollout{
		Client: c, Reader: w.api, Where: DefaultWhere(), Config: &ConfigStore{}, Watch: func([]Ref) {}, Clock: w.clock,
		Delivery: r.delivery, Report: r.delivery.Report,
	}
	r.sync()
	r.enqueue("")
	w.dispatchers = append(w.dispatchers, r)
	return r
}

// restart kills all dispatchers and starts one with nothing but the cluster to go by.
func (w *world) restart() {
	w.t.Helper()
	w.dispatchers = nil
	w.start()
}

func (r *replica) enqueue(names ...string) {
	for _, name := range names {
		r.queue[name] = true
	}
}

// guardWrite puts a write between the interceptions.
func (r *replica) guardWrite(verb string, object client.Object, write func() error) error {
	if _, event := object.(*eventsv1.Event); !event {
		if err := r.w.intercept("before", verb, object); err != nil {
			return err
		}
	}
	if err := r.w.refuse(verb, object); err != nil {
		return err
	}
	r.w.writes[fmt.Sprintf("%s %T", verb, object)]++
	if err := write(); err != nil {
		return err
	}
	if _, event := object.(*eventsv1.Event); event {
		return nil
	}
	return r.w.intercept("after", verb, object)
}

func (r *replica) create(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
	return r.guardWrite("create", object, func() error { return c.Create(ctx, object, opts...) })
}

func (r *replica) remove(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
	return r.guardWrite("delete", object, func() error { return c.Delete(ctx, object, opts...) })
}

func (r *replica) update(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.UpdateOption) error {
	return r.guardWrite("update", object, func() error { return c.Update(ctx, object, opts...) })
}

// sync brings the caches up to date and has everything that changed reconciled, as watches do.
func (r *replica) sync() {
	r.w.t.Helper()
	ctx := r.w.t.Context()
	nodes, jobs := &corev1.NodeList{}, &batchv1.JobList{}
	r.w.must(r.w.api.List(ctx, nodes, client.MatchingLabels(windowsLabels)))
	r.w.must(r.w.api.List(ctx, jobs, client.InNamespace(JobsNamespace)))
	if r.edits != r.w.edits {
		r.edits = r.w.edits
		r.enqueue("")
	}
	before, had := r.nodes, r.jobs
	r.nodes, r.jobs = map[string]corev1.Node{}, map[string]batchv1.Job{}
	for _, n := range nodes.Items {
		trimmed, err := trimNode(&n)
		r.w.must(err)
		r.nodes[n.Name] = *trimmed.(*corev1.Node)
		if old, ok := before[n.Name]; !ok || old.UID != n.UID || old.ResourceVersion != n.ResourceVersion {
			r.enqueue(n.Name)
		}
	}
	for _, j := range jobs.Items {
		trimmed, err := trimJob(&j)
		r.w.must(err)
		r.jobs[j.Name] = *trimmed.(*batchv1.Job)
		if old, ok := had[j.Name]; !ok || old.UID != j.UID || old.ResourceVersion != j.ResourceVersion {
			r.enqueue(jobRequest(ctx, &j)[0].Name)
		}
	}
	for name := range before {
		if _, ok := r.nodes[name]; !ok {
			r.enqueue(name)
		}
	}
	for name, old := range had {
		if now, ok := r.jobs[name]; !ok || now.UID != old.UID {
			r.enqueue(jobRequest(ctx, &old)[0].Name)
		}
	}
}

// cached answers reads of nodes and Jobs from a replica's caches.
type cached struct {
	client.WithWatch
	replica *replica
}

func (c *cached) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	switch into := object.(type) {
	case *corev1.Node:
		n, ok := c.replica.nodes[key.Name]
		if !ok {
			return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
		}
		n.DeepCopyInto(into)
	case *batchv1.Job:
		j, ok := c.replica.jobs[key.Name]
		if !ok {
			return apierrors.NewNotFound(batchv1.Resource("jobs"), key.Name)
		}
		j.DeepCopyInto(into)
	default:
		return c.WithWatch.Get(ctx, key, object, opts...)
	}
	return nil
}

func (c *cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	switch into := list.(type) {
	case *corev1.NodeList:
		for _, name := range slices.Sorted(maps.Keys(c.replica.nodes)) {
			into.Items = append(into.Items, c.replica.nodes[name])
		}
	case *batchv1.JobList:
		for _, name := range slices.Sorted(maps.Keys(c.replica.jobs)) {
			into.Items = append(into.Items, c.replica.jobs[name])
		}
	default:
		return c.WithWatch.List(ctx, list, opts...)
	}
	return nil
}

// work reconciles everything in the queue, in random order, and what comes into it meanwhile. It returns false when the
// dispatcher was killed.
func (r *replica) work() bool {
	r.w.t.Helper()
	for name, due := range r.timer {
		if !due.After(r.w.clock.Now()) {
			delete(r.timer, name)
			r.enqueue(name)
		}
	}
	for len(r.queue) > 0 {
		names := slices.Sorted(maps.Keys(r.queue))
		if !r.reconcile(names[r.w.random.IntN(len(names))]) {
			return false
		}
	}
	return true
}

// reconcile runs one request. An error puts it off, as the queue's own back-off does.
func (r *replica) reconcile(name string) bool {
	r.w.t.Helper()
	delete(r.queue, name)
	d := &dispatcher{rollout: r.rollout, delivery: r.delivery}
	result, err := d.Reconcile(r.w.t.Context(), requestFor(name))
	if errors.Is(err, errCrash) {
		return false
	}
	switch {
	case err != nil:
		r.timer[name] = r.w.clock.Now().Add(time.Second)
	case result.RequeueAfter > 0:
		r.timer[name] = r.w.clock.Now().Add(result.RequeueAfter)
	}
	return true
}
