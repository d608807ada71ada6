package dispatcher

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"kubelet-ca-courier/node"
)

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

func TestANodeWhosePodsMayNotBeListedIsToldAsBlocked(t *testing.T) {
	w, ca := delivered(t, 2)
	w.guard(ca + newCA(t, "b")) // from the second bundle on, a pod without a Job might still write the first
	w.settle()
	forbidden := true
	w.dispatchers[0].delivery.Reader = interceptor.NewClient(w.api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, pods := list.(*corev1.PodList); pods && forbidden {
				return apierrors.NewForbidden(corev1.Resource("pods"), "", errExceeded)
			}
			return c.List(ctx, list, opts...)
		},
	})
	w.must(w.api.Delete(t.Context(), w.job("win-000")))
	w.settle()
	w.wantStates(map[State]int{Delivered: 1, Blocked: 1})
	if got := w.events()[ReasonBlocked]; got != 2 {
		t.Errorf("%d events about it, want one on the node and one on the guarded ConfigMap", got)
	}
	forbidden = false
	w.pass(2 * time.Minute)
	w.wantStates(map[State]int{Delivered: 2})
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
