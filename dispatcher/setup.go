package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"os"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// workers is how many nodes are reconciled at once: as many as keep an API server busy. There is no rate limit on this
// side; API Priority and Fairness protects the server.
const workers = 32

// A request that failed, because the API server did, is tried again after errorFirst, doubling up to errorLast.
const (
	errorFirst = 100 * time.Millisecond
	errorLast  = 30 * time.Second
)

// dispatcher is one controller with one queue. A request with a name is for the node of that name; the one without is for
// the rollout as a whole, which so never runs twice at once.
type dispatcher struct {
	rollout  *Rollout
	delivery *Delivery
	queue    atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
	watch    *sourceWatch
}

// SetupWithManager adds the dispatcher to a manager whose cache has [CacheOptions]. The returned store follows the
// configuration from the manager's start on, leader or not; the dispatcher itself works only while it is the leader. It goes
// by the given clock, a [ServerClock] that follows the manager's transport.
func SetupWithManager(mgr ctrl.Manager, where Where, now clock.PassiveClock) (*ConfigStore, error) {
	clientset, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	d := &dispatcher{}
	config := &ConfigStore{}
	d.delivery = &Delivery{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Namespace: where.Jobs, Clock: now, Enqueue: d.enqueue,
	}
	collected, err := NewMetrics(metrics.Registry, d.delivery.Counts, d.delivery.Lacking)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	instance, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the host's name: %w", err)
	}
	d.delivery.Report = NewReport(mgr.GetClient(), now, collected, instance)
	d.rollout = &Rollout{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Where: where, Config: config, Clock: now,
		Delivery: d.delivery, Report: d.delivery.Report,
		Watch: func(refs []Ref) { d.watch.set(refs) },
	}
	core := clientset.CoreV1().RESTClient()
	changed := func(object *corev1.ConfigMap) {
		config.Store(object)
		d.enqueue("")
	}
	if err := mgr.Add(&configWatch{core: core, where: where, changed: changed}); err != nil {
		return nil, fmt.Errorf("watch the configuration: %w", err)
	}
	return config, d.control(mgr, core)
}

// control makes the controller and its sources.
func (d *dispatcher) control(mgr ctrl.Manager, core rest.Interface) error {
	c, err := controller.New("courier", mgr, controller.Options{
		Reconciler:              d,
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](errorFirst, errorLast),
	})
	if err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	started := source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		d.watch = &sourceWatch{ctx: ctx, core: core, changed: func() { d.enqueue("") }, running: map[nameKey]context.CancelFunc{}}
		d.queue.Store(&queue)
		d.enqueue("")
		return nil
	})
	cached := mgr.GetCache()
	for _, s := range []source.Source{
		started,
		source.Kind(cached, &corev1.Node{}, handler.TypedEnqueueRequestsFromMapFunc(nodeRequest), changedNode()),
		source.Kind(cached, &batchv1.Job{}, handler.TypedEnqueueRequestsFromMapFunc(jobRequest), changedJob()),
		source.Kind(cached, &corev1.ConfigMap{}, handler.TypedEnqueueRequestsFromMapFunc(rolloutRequest)),
	} {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	return nil
}

// Reconcile passes a request on.
func (d *dispatcher) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if request.Name == "" {
		return d.rollout.Reconcile(ctx)
	}
	return d.delivery.Reconcile(ctx, request.Name)
}

// enqueue has nodes, or with an empty name the rollout, reconciled. Before the dispatcher leads there is no queue, and
// nothing to do: it looks at everything when it starts.
func (d *dispatcher) enqueue(names ...string) {
	queue := d.queue.Load()
	if queue == nil {
		return
	}
	for _, name := range names {
		(*queue).Add(requestFor(name))
	}
}

func requestFor(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: nameKey{Name: name}}
}

type nameKey = client.ObjectKey

func nodeRequest(_ context.Context, n *corev1.Node) []reconcile.Request {
	return []reconcile.Request{requestFor(n.Name)}
}

// jobRequest finds the node of a Job. A Job that is not the dispatcher's may still have the name that a node needs.
func jobRequest(_ context.Context, j *batchv1.Job) []reconcile.Request {
	if name := j.Annotations[AnnotationNodeName]; name != "" {
		return []reconcile.Request{requestFor(name)}
	}
	return []reconcile.Request{requestFor(j.Name)}
}

func rolloutRequest(context.Context, *corev1.ConfigMap) []reconcile.Request {
	return []reconcile.Request{requestFor("")}
}

// changedNode passes heartbeats by: of a node's updates only those count that change what is read of it.
func changedNode() predicate.TypedPredicate[*corev1.Node] {
	return predicate.TypedFuncs[*corev1.Node]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Node]) bool {
		if (e.ObjectOld.DeletionTimestamp == nil) != (e.ObjectNew.DeletionTimestamp == nil) {
			return true
		}
		before, after := ReadNode(e.ObjectOld), ReadNode(e.ObjectNew)
		return before.UID != after.UID || before.BootID != after.BootID || before.Ready != after.Ready ||
			!maps.Equal(before.Labels, after.Labels)
	}}
}

// changedJob passes a Job's counters by.
func changedJob() predicate.TypedPredicate[*batchv1.Job] {
	return predicate.TypedFuncs[*batchv1.Job]{UpdateFunc: func(e event.TypedUpdateEvent[*batchv1.Job]) bool {
		before, after := ReadRecord(e.ObjectOld), ReadRecord(e.ObjectNew)
		return before.Phase != after.Phase || before.Deleting != after.Deleting || before.UID != after.UID
	}}
}

// configWatch follows the configuration on every replica: the gate at admission has to know what it guards.
type configWatch struct {
	core    rest.Interface
	where   Where
	changed func(*corev1.ConfigMap)
}

var _ manager.LeaderElectionRunnable = &configWatch{}

// Start follows the configuration until ctx ends.
func (w *configWatch) Start(ctx context.Context) error {
	watchConfigMap(ctx, w.core, w.where.Config, w.changed)
	return nil
}

// NeedLeaderElection says that it runs on every replica.
func (*configWatch) NeedLeaderElection() bool { return false }
