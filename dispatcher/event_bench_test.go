package dispatcher

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lookups is as much of an informer's cache as the delivery reads.
type lookups struct {
	client.Client
	nodes map[string]*corev1.Node
	jobs  map[string]*batchv1.Job
}

// Get copies an object out of the cache, as controller-runtime's does.
func (l *lookups) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Node:
		l.nodes[key.Name].DeepCopyInto(into)
	case *batchv1.Job:
		l.jobs[key.Name].DeepCopyInto(into)
	}
	return nil
}

// List lists all there is.
func (l *lookups) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	switch into := into.(type) {
	case *corev1.NodeList:
		for _, n := range l.nodes {
			into.Items = append(into.Items, *n)
		}
	case *batchv1.JobList:
		for _, j := range l.jobs {
			into.Items = append(into.Items, *j)
		}
	}
	return nil
}

// BenchmarkReconcile is one node's event, from the queue to the decision that there is nothing to do. What it costs does not
// depend on the number of nodes: compare the two lines.
func BenchmarkReconcile(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d nodes", count), func(b *testing.B) {
			d := delivery(b, count)
			for b.Loop() {
				if _, err := d.Reconcile(b.Context(), "win-00007"); err != nil {
					b.Fatal(err)
				}
			}
			if done := d.Counts()[Delivered]; done != count {
				b.Fatalf("%d of %d nodes are delivered to", done, count)
			}
		})
	}
}

// delivery is one with so many nodes that all hold the bundle.
func delivery(b *testing.B, count int) *Delivery {
	b.Helper()
	config, err := ParseConfig(map[string]string{SettingsKey: "guarded: {namespace: sources, name: guarded, key: ca}\n" +
		"destination: C:\\k\\kubelet-ca.crt\nimage: node:1\n"})
	if err != nil {
		b.Fatal(err)
	}
	target, err := NewTarget(Snapshot{Name: "kubelet-ca-a", Hash: "a", Sequence: 1}, config, JobsNamespace)
	if err != nil {
		b.Fatal(err)
	}
	cache := &lookups{nodes: map[string]*corev1.Node{}, jobs: map[string]*batchv1.Job{}}
	now := metav1.Now()
	for i := range count {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("win-%05d", i), Labels: windowsLabels}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		job := target.Job(ReadNode(n), Attempt{Number: 1, Cause: CauseMissing})
		job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now}}
		cache.nodes[n.Name], cache.jobs[job.Name] = n, job
	}
	d := &Delivery{Client: cache, Namespace: JobsNamespace, Clock: clocktesting.NewFakePassiveClock(now.Time), Enqueue: func(...string) {}}
	metrics, err := NewMetrics(prometheus.NewRegistry(), d.Counts, d.Lacking)
	if err != nil {
		b.Fatal(err)
	}
	d.Report = NewReport(cache, d.Clock, metrics, "bench")
	if _, err := d.Begin(b.Context(), target, false); err != nil {
		b.Fatal(err)
	}
	return d
}
