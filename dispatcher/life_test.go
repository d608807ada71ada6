package dispatcher

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/node"
)

func (w *world) wantStates(want map[State]int) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.states()); diff != "" {
		w.t.Errorf("states of the nodes (-want +got):\n%s", diff)
	}
}

// wantWrites compares the writes since the last call, events apart.
func (w *world) wantWrites(want map[string]int) {
	w.t.Helper()
	delete(w.writes, "create *v1.Event")
	if diff := cmp.Diff(want, w.writes); diff != "" {
		w.t.Errorf("writes (-want +got):\n%s", diff)
	}
	w.writes = map[string]int{}
}

// wantWritten compares how often each node's disk was written.
func (w *world) wantWritten(want map[string]int) {
	w.t.Helper()
	got := map[string]int{}
	for name, disk := range w.disks {
		got[name] = len(disk)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("writes of the nodes' files (-want +got):\n%s", diff)
	}
}

// delivered returns a world of so many nodes that hold a first bundle, and the bundle.
func delivered(t *testing.T, count int, settings ...string) (*world, string) {
	t.Helper()
	w := newWorld(t, settings...)
	w.addNodes(count)
	a := newCA(t, "a")
	w.guard(a)
	w.settle()
	w.wantStates(map[State]int{Delivered: count})
	w.writes = map[string]int{}
	return w, a
}

// job returns the Job of a node.
func (w *world) job(name string) *batchv1.Job {
	w.t.Helper()
	job := &batchv1.Job{}
	w.must(w.api.Get(w.t.Context(), client.ObjectKey{Namespace: JobsNamespace, Name: NodeKey(name)}, job))
	return job
}

func TestAnAcceptedBundleReachesEveryNodeOnce(t *testing.T) {
	w := newWorld(t)
	w.addNodes(5)
	w.guard(newCA(t, "a"))
	w.settle()
	w.wantStates(map[State]int{Delivered: 5})
	w.wantWritten(map[string]int{"win-000": 1, "win-001": 1, "win-002": 1, "win-003": 1, "win-004": 1})
	w.wantWrites(map[string]int{"create *v1.ConfigMap": 1, "create *v1.Job": 5})
	want := map[string]int{ReasonAccepted: 1, ReasonStarted: 1, ReasonDelivered: 6, ReasonFinished: 1}
	if diff := cmp.Diff(want, w.events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestARotationCostsTwoWritesOfEveryNode(t *testing.T) {
	w, a := delivered(t, 5)
	w.guard(a + newCA(t, "b"))
	w.settle()
	w.wantStates(map[State]int{Delivered: 5})
	w.wantWrites(map[string]int{"create *v1.ConfigMap": 1, "create *v1.Job": 5, "delete *v1.Job": 5})
}

func TestNothingIsWrittenWhileNothingChanges(t *testing.T) {
	w, a := delivered(t, 5)
	w.guard("# the same CA, with a comment\n" + a)
	w.pass(11 * time.Hour)
	w.wantWrites(map[string]int{})
	w.restart()
	w.settle()
	w.wantWrites(map[string]int{})
}

func TestEveryNodeIsLookedAtAgainWithinADay(t *testing.T) {
	w, _ := delivered(t, 20)
	w.pass(24*time.Hour + time.Minute)
	jobs := w.writes["create *v1.Job"]
	if jobs < 20 || jobs > 40 {
		t.Errorf("%d Jobs within a day, want every node to get one and none more than two", jobs)
	}
	for name, disk := range w.disks {
		if len(disk) < 2 {
			t.Errorf("%s was not looked at again", name)
		}
	}
}

func TestAJoiningNodeIsDeliveredToAlone(t *testing.T) {
	w, _ := delivered(t, 3)
	w.addNode("newcomer")
	w.settle()
	w.wantStates(map[State]int{Delivered: 4})
	w.wantWrites(map[string]int{"create *v1.Job": 1})
}

func TestANodeThatIsNotReadyIsDeliveredToWhenItIsBack(t *testing.T) {
	w, a := delivered(t, 3)
	w.setReady("win-001", corev1.ConditionUnknown)
	b := a + newCA(t, "b")
	w.guard(b)
	w.settle()
	w.wantStates(map[State]int{Delivered: 2, NotReady: 1})
	w.pass(3 * time.Hour)
	w.wantWrites(map[string]int{"create *v1.ConfigMap": 1, "create *v1.Job": 2, "delete *v1.Job": 2})
	w.setReady("win-001", corev1.ConditionTrue)
	w.settle()
	w.wantStates(map[State]int{Delivered: 3})
	w.wantWrites(map[string]int{"create *v1.Job": 1, "delete *v1.Job": 1})
}

func TestANodeThatGoesAwayUnderItsJobHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	w.addNodes(3)
	for _, name := range []string{"win-000", "win-001", "win-002"} {
		w.behave[name] = behaviour{hangs: true}
	}
	w.guard(newCA(t, "a"))
	w.turn()
	canary := w.jobsNow()[0].Annotations[AnnotationNodeName]
	w.setReady(canary, corev1.ConditionUnknown)
	w.behave = map[string]behaviour{}
	w.settle()
	w.wantStates(map[State]int{Delivered: 2, NotReady: 1})
	w.setReady(canary, corev1.ConditionTrue)
	w.settle()
	w.wantStates(map[State]int{Delivered: 3})
}

func TestACordonedAndTaintedNodeIsDeliveredTo(t *testing.T) {
	w := newWorld(t)
	w.addNode("win")
	w.changeNode("win", func(n *corev1.Node) {
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}, {Key: "any", Effect: corev1.TaintEffectNoExecute}}
	})
	w.guard(newCA(t, "a"))
	w.settle()
	w.wantStates(map[State]int{Delivered: 1})
	tolerations := w.job("win").Spec.Template.Spec.Tolerations
	if len(tolerations) != 1 || tolerations[0].Operator != corev1.TolerationOpExists || tolerations[0].Key != "" || tolerations[0].Effect != "" {
		t.Errorf("tolerations %v, want one for every taint", tolerations)
	}
}

func TestARebootedNodeIsDeliveredToAgain(t *testing.T) {
	w, _ := delivered(t, 3)
	w.changeNode("win-001", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "another" })
	w.settle()
	w.wantWritten(map[string]int{"win-000": 1, "win-001": 2, "win-002": 1})
}

func TestANodeWithoutABootIDIsNotTakenForRebooted(t *testing.T) {
	w, _ := delivered(t, 1)
	w.changeNode("win-000", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "" })
	w.settle()
	w.wantWrites(map[string]int{})
}

func TestADeletedNodeTakesItsJobAlongWithoutAWriteOfOurs(t *testing.T) {
	w, _ := delivered(t, 3)
	w.deleteNode("win-001")
	w.settle()
	w.wantStates(map[State]int{Delivered: 2})
	w.wantWrites(map[string]int{})
	if jobs := w.jobsNow(); len(jobs) != 2 {
		t.Errorf("%d Jobs are left, want 2", len(jobs))
	}
}

func TestANodeRecreatedUnderItsNameIsDeliveredTo(t *testing.T) {
	for _, test := range []struct {
		name    string
		collect bool
	}{
		{"after the garbage collector removed the old Job", true},
		{"before the garbage collector came by", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, _ := delivered(t, 2)
			if test.collect {
				w.deleteNode("win-001")
			} else {
				w.must(w.api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win-001"}}))
				delete(w.disks, "win-001")
			}
			w.addNode("win-001")
			w.settle()
			w.wantStates(map[State]int{Delivered: 2})
			w.wantWritten(map[string]int{"win-000": 1, "win-001": 1})
		})
	}
}

func TestANodeOutsideOfTheSelectorIsLeftAlone(t *testing.T) {
	w := newWorld(t, "nodeSelector: {pool: win}")
	w.addNodes(3)
	w.changeNode("win-001", func(n *corev1.Node) { n.Labels["pool"] = "win" })
	w.guard(newCA(t, "a"))
	w.settle()
	w.wantStates(map[State]int{Delivered: 1})
	w.changeNode("win-002", func(n *corev1.Node) { n.Labels["pool"] = "win" })
	w.changeNode("win-001", func(n *corev1.Node) { delete(n.Labels, "pool") })
	w.settle()
	w.wantStates(map[State]int{Delivered: 1})
	w.wantWritten(map[string]int{"win-001": 1, "win-002": 1})
}

func TestALinuxNodeIsNeverServed(t *testing.T) {
	w := newWorld(t, "nodeSelector: {}")
	w.addNodes(1)
	w.addNode("linux")
	w.changeNode("linux", func(n *corev1.Node) { n.Labels["kubernetes.io/os"] = "linux" })
	w.guard(newCA(t, "a"))
	w.settle()
	w.wantWritten(map[string]int{"win-000": 1})
}

func TestABundleThatChangesInMidRolloutSupersedesTheOneBefore(t *testing.T) {
	w := newWorld(t)
	w.addNodes(20)
	a := newCA(t, "a")
	w.guard(a)
	for range 4 {
		w.turn()
	}
	if done := w.states()[Delivered]; done == 0 || done == 20 {
		t.Fatalf("%d of 20 nodes are done; the test needs some", done)
	}
	b := a + newCA(t, "b")
	w.guard(b)
	w.settle()
	w.wantStates(map[State]int{Delivered: 20})
	w.wantEverywhere(b)
}

func TestABundleThatComesBackIsDeliveredAgain(t *testing.T) {
	w, a := delivered(t, 3)
	b := a + newCAUntil(t, "b", w.clock.Now().Add(time.Minute)) // may go again: it expires at once
	w.guard(b)
	w.settle()
	w.pass(10 * time.Minute)
	w.guard(a)
	w.settle()
	w.wantEverywhere(a)
	w.wantWritten(map[string]int{"win-000": 3, "win-001": 3, "win-002": 3})
	snapshots := &corev1.ConfigMapList{}
	w.must(w.api.List(t.Context(), snapshots, client.InNamespace(JobsNamespace)))
	if len(snapshots.Items) != 2 {
		t.Errorf("%d snapshots, want the two contents", len(snapshots.Items))
	}
}

func TestAnOlderJobAndItsPodAreGoneBeforeTheNewerOneExists(t *testing.T) {
	w, a := delivered(t, 1)
	w.behave["win-000"] = behaviour{hangs: true}
	b := a + newCA(t, "b")
	w.guard(b)
	w.turn()
	older := w.job("win-000").UID
	c := b + newCA(t, "c")
	w.guard(c)
	// The node stops answering, so the older Job's pod cannot be ended.
	w.setReady("win-000", corev1.ConditionUnknown)
	w.pass(time.Hour)
	if job := w.job("win-000"); job.UID != older || job.DeletionTimestamp == nil {
		t.Errorf("Job %s, want the older one on its way out, and none beside it", job.UID)
	}
	delete(w.behave, "win-000")
	w.setReady("win-000", corev1.ConditionTrue)
	w.settle()
	w.wantEverywhere(c)
}

func TestObserveModeLooksAndEnforceDeliversToThoseThatNeedIt(t *testing.T) {
	w := newWorld(t, "mode: observe")
	w.addNodes(4)
	a := newCA(t, "a")
	hash := hashOf(t, a)
	for _, name := range []string{"win-000", "win-002"} {
		w.disks[name] = []landed{{hash: hash}}
	}
	w.behave["win-003"] = behaviour{exit: node.ExitWouldRemove}
	w.guard(a)
	w.settle()
	w.wantStates(map[State]int{Delivered: 2, WouldChange: 1, WouldRemove: 1})
	w.wantWritten(map[string]int{"win-000": 1, "win-002": 1})
	w.writes = map[string]int{}
	w.behave = map[string]behaviour{}

	w.configure("mode: enforce")
	w.settle()
	w.wantStates(map[State]int{Delivered: 4})
	w.wantWrites(map[string]int{"create *v1.Job": 2, "delete *v1.Job": 2})
	w.wantWritten(map[string]int{"win-000": 1, "win-001": 1, "win-002": 1, "win-003": 1})

	w.configure("mode: observe")
	w.settle()
	w.wantWrites(map[string]int{})
}

func TestABadConfigurationChangesNothing(t *testing.T) {
	w, a := delivered(t, 2)
	w.apply(ManagerNamespace, ConfigName, map[string]string{SettingsKey: "mode: maybe"}, nil)
	b := a + newCA(t, "b")
	w.guard(b)
	w.settle()
	w.wantEverywhere(b)
	if got := w.events()[ReasonConfig]; got != 1 {
		t.Errorf("%d events about the configuration, want 1", got)
	}
}

func TestSnapshotsArePrunedToASmallHistory(t *testing.T) {
	w, bundle := delivered(t, 1)
	for _, name := range []string{"b", "c", "d", "e", "f", "g", "h"} {
		bundle += newCA(t, name)
		w.guard(bundle)
		w.settle()
	}
	snapshots := &corev1.ConfigMapList{}
	w.must(w.api.List(t.Context(), snapshots, client.InNamespace(JobsNamespace)))
	if len(snapshots.Items) != historyLimit {
		t.Errorf("%d snapshots, want %d", len(snapshots.Items), historyLimit)
	}
	w.wantEverywhere(bundle)
}

func TestTheOrderSurvivesTheLossOfAllSnapshots(t *testing.T) {
	w, a := delivered(t, 2)
	w.must(w.api.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace(JobsNamespace)))
	b := a + newCA(t, "b")
	w.guard(b)
	w.settle()
	w.wantStates(map[State]int{Delivered: 2})
	w.wantEverywhere(b)
}
