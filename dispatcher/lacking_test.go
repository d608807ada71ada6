package dispatcher

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/node"
)

// wantLacking compares the metrics of the first dispatcher with how many nodes lack the bundle, and since when.
func (w *world) wantLacking(nodes int, since time.Time) {
	w.t.Helper()
	registry := prometheus.NewRegistry()
	d := w.dispatchers[0].delivery
	_, err := NewMetrics(registry, d.Counts, d.Lacking)
	w.must(err)
	families, err := registry.Gather()
	w.must(err)
	got := map[string]float64{}
	for _, family := range families {
		got[family.GetName()] = family.GetMetric()[0].GetGauge().GetValue()
	}
	want := 0.0
	if nodes > 0 {
		want = float64(since.Unix())
	}
	if count := got["courier_nodes_lacking"]; count != float64(nodes) {
		w.t.Errorf("%v nodes lack the bundle, want %d", count, nodes)
	}
	if first := got["courier_lacking_since_timestamp_seconds"]; first != want {
		w.t.Errorf("the first one has lacked it since %v, want %v", first, want)
	}
}

// neverLacking fails the test when a Job is created or deleted while a node passes for one that lacks the bundle.
func (w *world) neverLacking() (writes func() int) {
	seen := 0
	w.intercept = func(string, string, client.Object) error {
		seen++
		if lacking := w.dispatchers[0].delivery.Lacking(); lacking.Nodes > 0 {
			w.t.Errorf("%d nodes pass for such that lack the bundle since %s", lacking.Nodes, lacking.Since)
		}
		return nil
	}
	return func() int { return seen }
}

func TestANodeLacksTheBundleFromItsAcceptanceOrItsBirthUntilItHoldsIt(t *testing.T) {
	w, a := delivered(t, 3)
	w.wantLacking(0, time.Time{})
	w.behave["win-001"] = behaviour{exit: node.ExitWriteFailed}
	w.setReady("win-002", corev1.ConditionUnknown) // it is away, and not late
	w.pass(time.Hour)
	accepted := w.clock.Now()
	w.guard(a + newCA(t, "b"))
	w.settle()
	w.pass(13 * time.Hour)
	w.wantStates(map[State]int{Delivered: 1, NotReady: 1, Backoff: 1})
	w.wantLacking(1, accepted)
	w.restart()
	w.settle()
	w.wantLacking(1, accepted)
	w.setReady("win-002", corev1.ConditionTrue)
	delete(w.behave, "win-001")
	w.pass(2 * time.Hour)
	w.wantStates(map[State]int{Delivered: 3})
	w.wantLacking(0, time.Time{})

	born := w.clock.Now()
	w.addNode("newcomer")
	w.changeNode("newcomer", func(n *corev1.Node) { n.CreationTimestamp.Time = born })
	w.behave["newcomer"] = behaviour{exit: node.ExitWriteFailed}
	w.settle()
	w.wantLacking(1, born)
	w.deleteNode("newcomer")
	w.settle()
	w.wantLacking(0, time.Time{})
}

func TestANodeThatIsLookedAtAgainLacksNothing(t *testing.T) {
	w, _ := delivered(t, 2)
	writes := w.neverLacking()
	w.pass(7 * 24 * time.Hour)
	w.changeNode("win-001", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "another" })
	w.settle()
	if writes() < 2*7 {
		t.Errorf("%d writes in a week, want looks at two nodes every day", writes())
	}
}

func TestALookThatFailsTakesNothingFromTheNode(t *testing.T) {
	w, a := delivered(t, 3)
	w.neverLacking()
	w.behave["win-001"] = behaviour{exit: node.ExitWriteFailed}
	w.behave["win-002"] = behaviour{hangs: true}
	w.pass(30 * time.Hour)
	w.restart()
	w.pass(3 * time.Hour)
	w.changeNode("win-001", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "another" })
	w.pass(time.Hour)
	if held := w.job("win-001").Annotations[AnnotationHeld]; held != "true" {
		t.Errorf("the Job says %q of what the node held before", held)
	}
	w.intercept = func(string, string, client.Object) error { return nil }
	accepted := w.clock.Now()
	w.guard(a + newCA(t, "b"))
	w.settle()
	w.pass(time.Hour)
	w.wantLacking(2, accepted)
}

func TestALookThatIsRefusedTakesNothingFromTheNode(t *testing.T) {
	w, _ := delivered(t, 1)
	w.neverLacking()
	w.refuse = func(verb string, object client.Object) error {
		if verb == "create" && object.GetNamespace() == JobsNamespace {
			return apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, object.GetName(), nil)
		}
		return nil
	}
	w.pass(26 * time.Hour)
	w.wantStates(map[State]int{Blocked: 1})
	w.wantLacking(0, time.Time{})
}

func TestInObserveModeNothingIsLate(t *testing.T) {
	w := newWorld(t, "mode: observe")
	w.addNodes(2)
	w.behave["win-001"] = behaviour{exit: node.ExitWouldChange}
	w.neverLacking()
	w.guard(newCA(t, "a"))
	w.settle()
	w.wantLacking(0, time.Time{})
	w.intercept = func(string, string, client.Object) error { return nil }
	w.behave["win-001"] = behaviour{exit: node.ExitWriteFailed}
	w.configure("mode: enforce")
	w.settle()
	w.pass(time.Hour)
	if lacking := w.dispatchers[0].delivery.Lacking().Nodes; lacking != 1 {
		t.Errorf("%d nodes lack the bundle, want the one whose file was seen not to be right", lacking)
	}
}
