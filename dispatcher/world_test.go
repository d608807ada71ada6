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
	"strings"
	"testing"
	"time"

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
