package dispatcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

func TestAJobDeletedByHandIsMadeAgainForItsNodeAlone(t *testing.T) {
	w, _ := delivered(t, 3)
	w.must(w.api.Delete(t.Context(), w.job("win-001")))
	w.settle()
	w.wantWrites(map[string]int{"create *v1.Job": 1})
	w.wantWritten(map[string]int{"win-000": 1, "win-001": 2, "win-002": 1})
}

func TestAPodThatOutlivesItsJobIsWaitedFor(t *testing.T) {
	w, a := delivered(t, 1)
	w.guard(a + newCA(t, "b"))
	w.behave["win-000"] = behaviour{hangs: true}
	w.turn()
	orphan := w.podsNow()
	w.dispatchers[0].sync()
	w.dispatchers[0].work()
	w.must(w.api.Delete(t.Context(), w.job("win-000")))
	r := w.dispatchers[0]
	r.sync()
	r.work()
	w.wantStates(map[State]int{Removing: 1})
	if jobs := w.jobsNow(); len(jobs) != 0 {
		t.Fatalf("%d Jobs beside a pod that still runs, want none", len(jobs))
	}
	for _, pod := range orphan {
		w.must(client.IgnoreNotFound(w.api.Delete(t.Context(), &pod)))
	}
	w.behave = map[string]behaviour{}
	w.pass(20 * time.Second)
	w.wantStates(map[State]int{Delivered: 1})
}

func TestAFailingNodeIsTriedAgainAtGrowingIntervals(t *testing.T) {
	w := newWorld(t)
	w.addNode("win")
	w.behave["win"] = behaviour{exit: node.ExitWriteFailed}
	w.guard(newCA(t, "a"))
	w.settle()
	w.wantStates(map[State]int{Backoff: 1})
	var attempts []string
	for range 200 {
		w.pass(30 * time.Second)
		if job := w.jobsNow(); len(job) == 1 {
			attempts = append(attempts, job[0].Annotations[AnnotationAttempt])
		}
	}
	attempts = slices.Compact(attempts)
	// 100 minutes hold waits of 0.5, 1, 2, 4, 8, 16, 32 minutes, each up to a fifth longer.
	if want := []string{"1", "2", "3", "4", "5", "6", "7", "8"}; !slices.Equal(attempts, want) {
		t.Errorf("attempts %v in 100 minutes, want %v", attempts, want)
	}
	if got := w.job("win").Annotations[AnnotationLastFailure]; got != "exit code 7: the disk would not take the file" {
		t.Errorf("the Job remembers %q of the attempt before", got)
	}
	delete(w.behave, "win")
	w.pass(90 * time.Minute)
	w.wantStates(map[State]int{Delivered: 1})
}

func TestAJobStuckInAnImagePullEndsAtItsDeadlineAndIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.addNode("win")
	w.behave["win"] = behaviour{hangs: true}
	w.guard(newCA(t, "a"))
	w.settle()
	w.pass(2 * time.Minute)
	w.wantStates(map[State]int{Slow: 1})
	job := w.job("win")
	if *job.Spec.ActiveDeadlineSeconds != 600 {
		t.Errorf("a deadline of %d s, want 600", *job.Spec.ActiveDeadlineSeconds)
	}
	w.endJob(metav1.OwnerReference{Name: job.Name, UID: job.UID}, batchv1.JobCondition{
		Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonDeadlineExceeded,
		Message: "Job was active longer than specified deadline",
	})
	w.settle()
	w.wantStates(map[State]int{Backoff: 1})
	delete(w.behave, "win")
	w.pass(2 * time.Minute)
	w.wantStates(map[State]int{Delivered: 1})
	if got := w.job("win").Annotations; got[AnnotationAttempt] != "2" || got[AnnotationLastFailure] != "Job was active longer than specified deadline" {
		t.Errorf("attempt %s after %q, want the second one, and the reason", got[AnnotationAttempt], got[AnnotationLastFailure])
	}
}

func TestARefusedJobIsAskedForAgainLater(t *testing.T) {
	resource := batchv1.Resource("jobs")
	for name, refusal := range map[string]error{
		"by a quota":             apierrors.NewForbidden(resource, "win-000", errExceeded),
		"by a limit range":       apierrors.NewForbidden(resource, "win-000", errExceeded),
		"by an admission policy": apierrors.NewInvalid(batchv1.SchemeGroupVersion.WithKind("Job").GroupKind(), "win-000", nil),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addNodes(3)
			w.refuse = func(verb string, object client.Object) error {
				if _, job := object.(*batchv1.Job); job && verb == "create" && object.GetName() == "win-000" {
					return refusal
				}
				return nil
			}
			w.guard(newCA(t, "a"))
			w.settle()
			w.wantStates(map[State]int{Delivered: 2, Blocked: 1})
			if got := w.events()[ReasonBlocked]; got != 2 {
				t.Errorf("%d events about it, want one on the node and one on the guarded ConfigMap", got)
			}
			w.refuse = func(string, client.Object) error { return nil }
			w.pass(2 * time.Minute)
			w.wantStates(map[State]int{Delivered: 3})
		})
	}
}

func TestAJobOfAnOlderCourierStandsIfItSucceeded(t *testing.T) {
	w, _ := delivered(t, 3)
	for _, name := range []string{"win-000", "win-001", "win-002"} {
		job := w.job(name)
		job.Annotations[AnnotationTemplate] = "of an older version"
		w.must(w.api.Update(t.Context(), job))
	}
	w.restart()
	w.settle()
	w.wantWrites(map[string]int{})
}

func TestAJobOfAnOlderCourierThatStillRunsIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.addNode("win")
	w.behave["win"] = behaviour{hangs: true}
	w.guard(newCA(t, "a"))
	w.settle()
	w.configure("image: node:2")
	delete(w.behave, "win")
	w.dispatchers[0].enqueue("")
	w.dispatchers[0].work()
	if w.job("win").DeletionTimestamp == nil {
		t.Error("the Job of the old image is not on its way out")
	}
	w.settle()
	w.wantStates(map[State]int{Delivered: 1})
	if image := w.job("win").Spec.Template.Spec.Containers[0].Image; image != "node:2" {
		t.Errorf("image %s, want the new one", image)
	}
}

func TestANewImageAloneIsNoReasonToDeliverAgain(t *testing.T) {
	w, _ := delivered(t, 3)
	w.configure("image: node:2")
	w.settle()
	w.wantWrites(map[string]int{})
}

func TestANewDestinationIsDeliveredTo(t *testing.T) {
	w, _ := delivered(t, 3)
	w.configure(`destination: C:\other\ca.crt`)
	w.settle()
	w.wantWrites(map[string]int{"create *v1.Job": 3, "delete *v1.Job": 3})
}

func TestSomeoneElsesJobUnderANodesNameIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.addNodes(2)
	foreign := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: JobsNamespace, Name: "win-001"}}
	w.must(w.api.Create(t.Context(), foreign))
	w.guard(newCA(t, "a"))
	for range 10 {
		w.turnWithoutControllers()
	}
	if got := w.states()[Blocked]; got != 1 {
		t.Errorf("%d nodes are blocked, want 1", got)
	}
	if w.job("win-001").UID != foreign.UID {
		t.Error("someone else's Job was replaced")
	}
	w.must(w.api.Delete(t.Context(), foreign))
	w.settle()
	w.wantStates(map[State]int{Delivered: 2})
}

func TestNodesWithOneLongFirstLabelInCommonHaveJobsOfTheirOwn(t *testing.T) {
	long := strings.Repeat("a", 60)
	w := newWorld(t)
	names := []string{long + ".one.example", long + ".two.example", "plain", "with.dots"}
	for _, name := range names {
		w.addNode(name)
		w.changeNode(name, func(n *corev1.Node) { n.Labels["kubernetes.io/hostname"] = "the-same" })
	}
	w.guard(newCA(t, "a"))
	w.settle()
	w.wantStates(map[State]int{Delivered: 4})
	w.wantWritten(map[string]int{names[0]: 1, names[1]: 1, names[2]: 1, names[3]: 1})
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

func TestAThousandFailuresAreAFewEvents(t *testing.T) {
	w := newWorld(t, "slowStart: false")
	w.addNodes(60)
	for name := range nodeNames(60) {
		w.behave[name] = behaviour{exit: node.ExitWriteFailed}
	}
	w.guard(newCA(t, "a"))
	w.settle()
	total := 0
	for _, count := range w.events() {
		total += count
	}
	if most := nodesTold + 4; total > most {
		t.Errorf("%d events for 60 failing nodes, want at most %d", total, most)
	}
}
