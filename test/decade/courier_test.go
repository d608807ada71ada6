package decade

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"kubelet-ca-courier/dispatcher"
)

// courier is the process of the dispatcher that leads: the real reconcilers, a cache that lags, and a queue.
type courier struct {
	w     *world
	alive since
	off   time.Duration
	// life tells one process from the next: what an earlier one had planned does not happen.
	life  int
	cache map[id]client.Object

	config   *dispatcher.ConfigStore
	rollout  *dispatcher.Rollout
	delivery *dispatcher.Delivery
	due      map[string]time.Time
	failures map[string]int
	touched  time.Time // when something that a rollout reads changed last
	held     bool
	crashIn  int // writes until it crashes; 0 is never
	enforce  since
}

func configID() id {
	return id{"configmaps", dispatcher.ManagerNamespace, dispatcher.ConfigName}
}

func newCourier(w *world) *courier {
	c := &courier{w: w, off: w.history.courierClock}
	c.configure(func(text string) string { return text })
	w.api.watch(c.see)
	return c
}

// configure writes courier's configuration, edited.
func (c *courier) configure(edit func(string) string) {
	text := fmt.Sprintf(`guarded: {namespace: %s, name: %s, key: %s}
extraSources:
- {namespace: %s, name: %s, key: %s, required: true}
mode: enforce
destination: C:\k\kubelet-ca.crt
image: kubelet-ca-courier/node:dev
lookAgain: %s
`, guardedNamespace, guardedName, bundleKey, managedNamespace, managedName, bundleKey, c.w.history.lookAgain)
	if c.w.history.confirm {
		text += "extraArgs: [--confirm, \"127.0.0.1:10250\"]\n"
	}
	text = edit(text)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.ManagerNamespace, Name: dispatcher.ConfigName},
		Data: map[string]string{dispatcher.SettingsKey: text}}
	if c.w.api.put(userAdmin, configID(), cm) == nil {
		c.enforce.set(!strings.Contains(text, "mode: observe"), c.w.now)
	}
}

// start starts a process: nothing of the last one is left.
func (c *courier) start() {
	c.life++
	c.alive.set(true, c.w.now)
	c.cache, c.due, c.failures, c.held = map[id]client.Object{}, map[string]time.Time{}, map[string]int{}, false
	for k, object := range c.w.api.objects {
		c.remember(k, object)
	}
	c.config = &dispatcher.ConfigStore{}
	c.config.Store(c.w.api.configMap(dispatcher.ManagerNamespace, dispatcher.ConfigName))
	cached, live := access{c: c}, access{c: c, live: true}
	own := skewed{c.w, c.off}
	c.delivery = &dispatcher.Delivery{Client: cached, Reader: live, Namespace: dispatcher.JobsNamespace, Clock: own, Enqueue: c.enqueue}
	metrics, err := dispatcher.NewMetrics(prometheus.NewRegistry(), c.delivery.Counts, c.delivery.Lacking)
	if err != nil {
		panic(err)
	}
	c.delivery.Report = dispatcher.NewReport(cached, own, metrics, "courier")
	c.rollout = &dispatcher.Rollout{
		Client: cached, Reader: live, Where: dispatcher.DefaultWhere(), Config: c.config, Clock: own,
		Watch: func([]dispatcher.Ref) {}, Delivery: c.delivery, Report: c.delivery.Report,
	}
	c.touched = c.w.now
	c.enqueue("")
}

// stop ends the process, by whatever means.
func (c *courier) stop() { c.alive.set(false, c.w.now) }

// restart stops the process and starts another one later.
func (c *courier) restart(d time.Duration) {
	c.stop()
	life := c.life
	c.w.after(d, func() {
		if c.life == life && c.w.powered.on && !c.alive.on {
			c.start()
		}
	})
}

// event takes an event that the dispatcher writes.
func (c *courier) event(e *eventsv1.Event) {
	switch e.Reason {
	case dispatcher.ReasonHeld:
		c.held = true
	case dispatcher.ReasonResumed:
		c.held = false
	}
	c.w.tell("event %s %s: %s", e.Type, e.Reason, e.Note)
}

// crashed is what a process that is killed in the middle of a write panics with.
type crashed struct{}

// write does a write, and crashes before or after it when its time has come.
func (c *courier) write(do func() error) error {
	if c.crashIn > 0 {
		if c.crashIn--; c.crashIn == 0 {
			if c.w.oneIn("crash/after", 2) {
				_ = do() // the write got through, the answer did not
			}
			panic(crashed{})
		}
	}
	return do()
}

// see tells the process about a change, when its watch gets to it.
func (c *courier) see(k id, _, _ client.Object) {
	life := c.life
	c.w.after(c.w.between("courier/watch/"+k.kind, 0, 2*time.Second), func() {
		if c.life == life && c.alive.on {
			c.catchUp(k)
		}
	})
}

// catchUp puts the object as it is now into the cache, and has reconciled what the real predicates would have reconciled.
func (c *courier) catchUp(k id) {
	was := c.cache[k]
	c.remember(k, c.w.api.objects[k])
	is := c.cache[k]
	switch {
	case k == guardedID() || k == managedID():
		c.touched = c.w.now
		c.enqueue("")
	case k == configID():
		c.touched = c.w.now
		c.config.Store(c.w.api.configMap(k.namespace, k.name))
		c.enqueue("")
	case k.kind == "configmaps" && k.namespace == dispatcher.JobsNamespace:
		c.touched = c.w.now
		c.enqueue("")
	case k.kind == "nodes" && !sameNode(was, is):
		c.enqueue(k.name)
	case k.kind == "jobs" && !sameJob(was, is):
		c.enqueue(nodeOf(was, is, k.name))
	}
}

func sameNode(was, is client.Object) bool {
	if was == nil || is == nil {
		return was == nil && is == nil
	}
	before, after := was.DeepCopyObject().(client.Object), is.DeepCopyObject().(client.Object)
	before.SetResourceVersion("")
	after.SetResourceVersion("")
	return reflect.DeepEqual(before, after)
}

func sameJob(was, is client.Object) bool {
	if was == nil || is == nil {
		return was == nil && is == nil
	}
	before, after := dispatcher.ReadRecord(was.(*batchv1.Job)), dispatcher.ReadRecord(is.(*batchv1.Job))
	return before.Phase == after.Phase && before.Deleting == after.Deleting && before.UID == after.UID
}

func nodeOf(was, is client.Object, name string) string {
	for _, object := range []client.Object{is, was} {
		if object != nil && object.GetAnnotations()[dispatcher.AnnotationNodeName] != "" {
			return object.GetAnnotations()[dispatcher.AnnotationNodeName]
		}
	}
	return name
}

// remember caches an object as the real cache's transforms leave it; nil forgets it.
func (c *courier) remember(k id, object client.Object) {
	if object == nil {
		delete(c.cache, k)
		return
	}
	if k.kind == "pods" {
		return
	}
	if k.kind == "configmaps" && k.namespace != dispatcher.JobsNamespace {
		return
	}
	for prototype, by := range transforms() {
		if reflect.TypeOf(prototype) != reflect.TypeOf(object) || by == nil {
			continue
		}
		trimmed, err := by(object.DeepCopyObject())
		if err != nil {
			panic(err)
		}
		object = trimmed.(client.Object)
	}
	c.cache[k] = object
}

// transforms are those of the real cache.
func transforms() map[client.Object]toolscache.TransformFunc {
	all := map[client.Object]toolscache.TransformFunc{}
	for object, by := range dispatcher.CacheOptions(dispatcher.JobsNamespace).ByObject {
		all[object] = by.Transform
	}
	return all
}

// enqueue is the queue's Add.
func (c *courier) enqueue(names ...string) {
	for _, name := range names {
		c.addAfter(name, c.w.between("courier/queue", 0, 200*time.Millisecond))
	}
}

// addAfter is the queue's AddAfter: of several times for one name the earliest counts.
func (c *courier) addAfter(name string, d time.Duration) {
	due := c.w.now.Add(d)
	if planned, found := c.due[name]; found && !planned.After(due) {
		return
	}
	c.due[name] = due
	life := c.life
	c.w.at(due, func() {
		if c.life == life && c.alive.on && c.due[name].Equal(due) {
			delete(c.due, name)
			c.reconcile(name)
		}
	})
}

// reconcile runs the real reconciler, as the real controller would.
func (c *courier) reconcile(name string) {
	defer func() {
		if r := recover(); r != nil {
			if _, killed := r.(crashed); !killed {
				panic(r)
			}
			c.w.stats[crashes]++
			c.w.tell("courier crashes")
			c.restart(c.w.between("courier/restart", 5*time.Second, 2*time.Minute))
		}
	}()
	var result reconcile.Result
	var err error
	if name == "" {
		result, err = c.rollout.Reconcile(context.Background())
	} else {
		result, err = c.delivery.Reconcile(context.Background(), name)
	}
	if err != nil {
		c.w.tell("courier, %s: %v", strconv.Quote(name), err)
		wait := 5 * time.Millisecond << min(c.failures[name], 18)
		c.failures[name]++
		c.addAfter(name, min(wait, 1000*time.Second))
		return
	}
	delete(c.failures, name)
	if result.RequeueAfter > 0 {
		c.addAfter(name, c.stretched(name, result.RequeueAfter))
	}
}

// stretched spares the run most of the passes of a rollout in which nothing changed, which come every five minutes: ten
// minutes after the last change they come every three days, and every two hours while something is held.
func (c *courier) stretched(name string, after time.Duration) time.Duration {
	switch {
	case name != "" || c.w.now.Sub(c.touched) < 10*time.Minute:
		return after
	case c.held:
		return 2 * time.Hour
	default:
		return 3 * day
	}
}

// configured says whether the process has a configuration to work by.
func (c *courier) configured() bool {
	_, ok := c.config.Config()
	return ok
}

// snapshot returns the snapshot that is current in storage, or nil.
func (w *world) snapshot() *dispatcher.Snapshot {
	var all []dispatcher.Snapshot
	for _, object := range w.api.all("configmaps", dispatcher.JobsNamespace) {
		if s, err := dispatcher.ReadSnapshot(object.(*corev1.ConfigMap)); err == nil {
			all = append(all, s)
		}
	}
	return dispatcher.Current(slices.Clip(all))
}
