package dispatcher

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/big"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/node"
)

// world is a cluster in memory: a fake API server that deletes as the real one does, a Job controller, a garbage
// collector, nodes with disks, and any number of dispatchers. Nothing happens in it unless a test, or [world.settle],
// makes it happen, so that every interleaving can be had.
type world struct {
	t      *testing.T
	clock  *clocktesting.FakePassiveClock
	api    client.WithWatch
	random *mathrand.Rand

	dispatchers []*replica
	// behave says how the landing ends on a node; success unless said otherwise.
	behave map[string]behaviour
	// disks hold what was written, in order.
	disks map[string][]landed
	// writes counts writes by verb and kind.
	writes map[string]int
	serial int
	// mutations counts all changes of the cluster.
	mutations int
	// edits counts the changes of ConfigMaps that dispatchers watch.
	edits int
	// intercept is called before and after each write of a dispatcher; an error ends the dispatcher's life.
	intercept func(when, verb string, object client.Object) error
	// refuse makes the API server refuse writes.
	refuse func(verb string, object client.Object) error
	// rest is what the cluster looked like when it had nothing to do.
	rest string
}

// behaviour is how the landing ends: an exit code, or never.
type behaviour struct {
	exit  node.ExitCode
	hangs bool
}

// landed is a bundle that was written to a node.
type landed struct {
	hash string
	// accepted is the place of the bundle in the order of acceptance when its Job was made.
	accepted int64
}

var errCrash = errors.New("the dispatcher was killed")

// newWorld returns a cluster with the guarded ConfigMap and a configuration, and one dispatcher that leads.
func newWorld(t *testing.T, settings ...string) *world {
	t.Helper()
	w := &world{
		t:         t,
		clock:     clocktesting.NewFakePassiveClock(time.Now().Truncate(time.Second)),
		random:    mathrand.New(mathrand.NewPCG(1, 1)),
		behave:    map[string]behaviour{},
		disks:     map[string][]landed{},
		writes:    map[string]int{},
		intercept: func(string, string, client.Object) error { return nil },
		refuse:    func(string, client.Object) error { return nil },
	}
	w.api = interceptor.NewClient(fake.NewClientBuilder().WithRESTMapper(mapper()).Build(), interceptor.Funcs{
		Create: w.create, Delete: w.delete, Update: w.update, SubResourceUpdate: w.updateStatus,
	})
	w.configure(settings...)
	w.start()
	return w
}

// configure writes the configuration, the given lines added to the least there can be.
func (w *world) configure(lines ...string) {
	w.t.Helper()
	base := []string{
		"guarded: {namespace: sources, name: guarded, key: ca}",
		`destination: C:\k\kubelet-ca.crt`,
		"image: node:1",
	}
	for _, line := range lines {
		field, _, _ := strings.Cut(line, ":")
		base = slices.DeleteFunc(base, func(have string) bool { return strings.HasPrefix(have, field+":") })
	}
	w.apply(ManagerNamespace, ConfigName, map[string]string{SettingsKey: strings.Join(append(base, lines...), "\n")}, nil)
}

// guard writes the guarded bundle.
func (w *world) guard(bundle string) {
	w.t.Helper()
	w.apply("sources", "guarded", map[string]string{"ca": bundle}, nil)
}

// apply writes a ConfigMap as an admin would.
func (w *world) apply(namespace, name string, data, annotations map[string]string) {
	w.t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations}, Data: data}
	ctx := w.t.Context()
	err := w.api.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		err = w.api.Update(ctx, object)
	}
	w.must(err)
	w.edits++
}

// addNode adds a Ready Windows node.
func (w *world) addNode(name string) {
	w.t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "windows"}},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{BootID: w.id("boot")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	w.must(w.api.Create(w.t.Context(), n))
}

func (w *world) addNodes(count int) {
	w.t.Helper()
	for i := range count {
		w.addNode(nodeName(i))
	}
}

// changeNode changes a node's object or status.
func (w *world) changeNode(name string, change func(n *corev1.Node)) {
	w.t.Helper()
	n := &corev1.Node{}
	w.must(w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, n))
	change(n)
	status := n.Status
	w.must(w.api.Update(w.t.Context(), n))
	n.Status = status
	w.must(w.api.Status().Update(w.t.Context(), n))
}

func (w *world) setReady(name string, status corev1.ConditionStatus) {
	w.t.Helper()
	w.changeNode(name, func(n *corev1.Node) { n.Status.Conditions[0].Status = status })
}

// deleteNode deletes a node, and with it the Jobs that it owns.
func (w *world) deleteNode(name string) {
	w.t.Helper()
	w.must(w.api.Delete(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	delete(w.disks, name)
	w.collect()
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) id(kind string) string {
	w.serial++
	return fmt.Sprintf("%s-%04d", kind, w.serial)
}

// mapper knows the few kinds that are used; the default one knows all and takes its time.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(batchv1.SchemeGroupVersion.WithKind("Job"), meta.RESTScopeNamespace)
	m.Add(eventsv1.SchemeGroupVersion.WithKind("Event"), meta.RESTScopeNamespace)
	return m
}

// updateStatus counts.
func (w *world) updateStatus(ctx context.Context, c client.Client, name string, object client.Object, opts ...client.SubResourceUpdateOption) error {
	w.mutations++
	return c.SubResource(name).Update(ctx, object, opts...)
}

// create is the API server's part in creating: an identity and a time.
func (w *world) create(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
	w.mutations++
	object.SetUID(types.UID(w.id("uid")))
	object.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))
	return c.Create(ctx, object, opts...)
}

// update keeps the identity.
func (w *world) update(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.UpdateOption) error {
	w.mutations++
	before := object.DeepCopyObject().(client.Object)
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), before); err != nil {
		return err
	}
	object.SetUID(before.GetUID())
	object.SetCreationTimestamp(before.GetCreationTimestamp())
	return c.Update(ctx, object, opts...)
}

// delete is the API server's part in deleting: preconditions, and the finalizer of a foreground deletion.
func (w *world) delete(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
	w.mutations++
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	now := object.DeepCopyObject().(client.Object)
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), now); err != nil {
		return err
	}
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != now.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{Resource: "any"}, object.GetName(), errors.New("the UID differs"))
	}
	if _, job := now.(*batchv1.Job); job && options.PropagationPolicy != nil && *options.PropagationPolicy == metav1.DeletePropagationForeground {
		if now.GetDeletionTimestamp() != nil {
			return nil
		}
		now.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
		if err := c.Update(ctx, now); err != nil {
			return err
		}
	}
	return c.Delete(ctx, now)
}

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
	metrics, err := NewMetrics(prometheus.NewRegistry(), r.delivery.Counts)
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

// jobsNow lists the Jobs there are.
func (w *world) jobsNow() []batchv1.Job {
	w.t.Helper()
	list := &batchv1.JobList{}
	w.must(w.api.List(w.t.Context(), list, client.InNamespace(JobsNamespace)))
	return list.Items
}

func (w *world) podsNow() []corev1.Pod {
	w.t.Helper()
	list := &corev1.PodList{}
	w.must(w.api.List(w.t.Context(), list, client.InNamespace(JobsNamespace)))
	return list.Items
}

// controllers lets the Job controller start a pod for every live Job that has none.
func (w *world) controllers() {
	w.t.Helper()
	pods := map[types.UID]bool{}
	for _, pod := range w.podsNow() {
		pods[pod.OwnerReferences[0].UID] = true
	}
	for _, job := range w.jobsNow() {
		if pods[job.UID] || job.DeletionTimestamp != nil || ReadRecord(&job).Phase != Live {
			continue
		}
		accepted := ReadRecord(&job).Sequence
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: job.Namespace, Name: w.id(job.Name), Labels: job.Spec.Template.Labels,
				Annotations:     map[string]string{"hash": job.Annotations[AnnotationHash], "accepted": strconv.FormatInt(accepted, 10), "node": job.Annotations[AnnotationNodeName]},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}},
			},
			Spec:   job.Spec.Template.Spec,
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
		w.must(w.api.Create(w.t.Context(), pod))
	}
}

// kubelets let every running pod on a Ready node come to its end, if it does.
func (w *world) kubelets() {
	w.t.Helper()
	for _, pod := range w.podsNow() {
		if pod.Status.Phase == corev1.PodRunning {
			w.land(&pod)
		}
	}
}

// land runs the landing in a pod and lets the Job controller draw its conclusion.
func (w *world) land(pod *corev1.Pod) {
	w.t.Helper()
	name := pod.Annotations["node"]
	behaviour := w.behave[name]
	if behaviour.hangs || !w.ready(name) {
		return
	}
	exit := behaviour.exit
	observing := pod.Labels[LabelMode] == string(Observe)
	if exit == node.ExitOK && observing && w.onDisk(name) != pod.Annotations["hash"] {
		exit = node.ExitWouldChange
	}
	if exit == node.ExitOK && !observing {
		w.write(name, pod)
	}
	pod.Status.Phase = corev1.PodSucceeded
	if exit != node.ExitOK {
		pod.Status.Phase = corev1.PodFailed
	}
	w.must(w.api.Status().Update(w.t.Context(), pod))
	w.conclude(pod, exit)
}

// write puts the bundle on the node's disk. An older one after a newer one is what must never be.
func (w *world) write(name string, pod *corev1.Pod) {
	w.t.Helper()
	var accepted int64
	_, err := fmt.Sscan(pod.Annotations["accepted"], &accepted)
	w.must(err)
	disk := w.disks[name]
	if len(disk) > 0 && disk[len(disk)-1].accepted > accepted {
		w.t.Fatalf("an older bundle was written to %s after a newer one", name)
	}
	w.disks[name] = append(disk, landed{hash: pod.Annotations["hash"], accepted: accepted})
}

// onDisk is the hash of what the node holds.
func (w *world) onDisk(name string) string {
	disk := w.disks[name]
	if len(disk) == 0 {
		return ""
	}
	return disk[len(disk)-1].hash
}

func (w *world) ready(name string) bool {
	w.t.Helper()
	n := &corev1.Node{}
	err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, n)
	if apierrors.IsNotFound(err) {
		return false
	}
	w.must(err)
	return ReadNode(n).Ready
}

// conclude gives the pod's Job its condition.
func (w *world) conclude(pod *corev1.Pod, exit node.ExitCode) {
	w.t.Helper()
	condition := batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}
	if exit != node.ExitOK {
		condition = batchv1.JobCondition{
			Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonPodFailurePolicy,
			Message: fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching FailJob rule at index 1",
				container, pod.Namespace, pod.Name, exit),
		}
	}
	w.endJob(pod.OwnerReferences[0], condition)
}

// endJob ends the Job of this identity, if it is still there.
func (w *world) endJob(owner metav1.OwnerReference, condition batchv1.JobCondition) {
	w.t.Helper()
	job := &batchv1.Job{}
	err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: JobsNamespace, Name: owner.Name}, job)
	if apierrors.IsNotFound(err) || job.UID != owner.UID {
		return
	}
	w.must(err)
	if ReadRecord(job).Phase != Live {
		return
	}
	condition.LastTransitionTime = metav1.NewTime(w.clock.Now())
	job.Status.Conditions = append(job.Status.Conditions, condition)
	w.must(w.api.Status().Update(w.t.Context(), job))
}

// collect is the garbage collector: Jobs of nodes that are gone, pods of Jobs that are gone or going, and then the
// finalizers of those. A pod that runs on a node that is not Ready cannot be ended.
func (w *world) collect() {
	w.t.Helper()
	ctx := w.t.Context()
	uids := map[types.UID]bool{}
	nodes := &corev1.NodeList{}
	w.must(w.api.List(ctx, nodes))
	for _, n := range nodes.Items {
		uids[n.UID] = true
	}
	for _, job := range w.jobsNow() {
		if len(job.OwnerReferences) > 0 && !uids[job.OwnerReferences[0].UID] && job.DeletionTimestamp == nil {
			w.must(w.api.Delete(ctx, &job))
		}
	}
	going := map[types.UID]*batchv1.Job{}
	for _, job := range w.jobsNow() {
		uids[job.UID] = true
		if job.DeletionTimestamp != nil {
			going[job.UID] = &job
		}
	}
	for _, pod := range w.podsNow() {
		owner := pod.OwnerReferences[0].UID
		if uids[owner] && going[owner] == nil {
			continue
		}
		name := pod.Annotations["node"]
		err := w.api.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
		if err == nil && !w.ready(name) && pod.Status.Phase == corev1.PodRunning {
			delete(going, owner)
			continue
		}
		w.must(w.api.Delete(ctx, &pod))
	}
	for _, job := range going {
		job.Finalizers = nil
		w.must(w.api.Update(ctx, job))
	}
}

// turn lets everyone in the cluster do what there is to do, once.
func (w *world) turn() {
	w.t.Helper()
	for _, r := range w.dispatchers {
		r.sync()
		if !r.work() {
			w.restart()
			return
		}
	}
	now := fmt.Sprint(w.mutations, w.behave)
	if now == w.rest {
		return
	}
	w.controllers()
	w.kubelets()
	w.collect()
	w.rest = now
}

// settle takes turns, a second apart, until nothing changes any more and no dispatcher means to do something within
// seconds.
func (w *world) settle() {
	w.t.Helper()
	const most = 2000
	for range most {
		before := w.mutations
		w.turn()
		if before == w.mutations && w.due().Sub(w.clock.Now()) > 15*time.Second {
			return
		}
		w.clock.SetTime(w.clock.Now().Add(time.Second))
	}
	w.t.Fatal("the cluster does not come to rest")
}

// pass lets time go by. It stops wherever something happens, or a dispatcher means to do something.
func (w *world) pass(long time.Duration) {
	w.t.Helper()
	end := w.clock.Now().Add(long)
	for w.clock.Now().Before(end) {
		before := w.mutations
		w.turn()
		next := w.clock.Now().Add(time.Second)
		if due := w.due(); before == w.mutations && due.After(next) {
			next = due
		}
		if next.After(end) {
			next = end
		}
		w.clock.SetTime(next)
	}
	w.turn()
}

// due is when a dispatcher next means to do something.
func (w *world) due() time.Time {
	next := w.clock.Now().Add(24 * time.Hour)
	for _, r := range w.dispatchers {
		for _, due := range r.timer {
			if due.Before(next) {
				next = due
			}
		}
	}
	return next
}

// states counts the nodes in each state, as the first dispatcher sees them.
func (w *world) states() map[State]int {
	counts := w.dispatchers[0].delivery.Counts()
	maps.DeleteFunc(counts, func(_ State, count int) bool { return count == 0 })
	return counts
}

// events lists the reasons of all events, with how often each was given.
func (w *world) events() map[string]int {
	w.t.Helper()
	list := &eventsv1.EventList{}
	w.must(w.api.List(w.t.Context(), list))
	reasons := map[string]int{}
	for _, event := range list.Items {
		reasons[event.Reason]++
	}
	return reasons
}

// newCA returns a self-signed CA that is valid in the world's time.
func newCA(t *testing.T, name string) string {
	t.Helper()
	return newCAUntil(t, name, time.Now().AddDate(1, 0, 0))
}

func newCAUntil(t *testing.T, name string, end time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              end,
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// wantEverywhere checks that the last thing on every node's disk is this bundle.
func (w *world) wantEverywhere(text string) {
	w.t.Helper()
	want := hashOf(w.t, text)
	for name := range w.disks {
		if got := w.onDisk(name); got != want {
			w.t.Errorf("%s holds bundle %s, want %s", name, shortHash(got), shortHash(want))
		}
	}
}

// turnWithoutControllers lets the dispatchers alone do what there is to do.
func (w *world) turnWithoutControllers() {
	w.t.Helper()
	for _, r := range w.dispatchers {
		r.sync()
		r.work()
	}
	w.clock.SetTime(w.clock.Now().Add(time.Second))
}

func nodeName(i int) string { return fmt.Sprintf("win-%03d", i) }

func nodeNames(count int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range count {
			if !yield(nodeName(i)) {
				return
			}
		}
	}
}

// errExceeded is what a quota says.
var errExceeded = errors.New("exceeded quota")

// hashOf is the hash under which a bundle is delivered.
func hashOf(t *testing.T, text string) string {
	t.Helper()
	parsed, findings := bundle.Parse([]byte(text))
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	return parsed.Hash()
}
