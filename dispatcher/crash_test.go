package dispatcher

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/node"
)

// seeds is how many random histories are tried.
var seeds = flag.Uint64("seeds", 10, "number of random histories")

// crashAt kills the dispatcher at the nth write from now, before or after it, and reports through the returned function
// whether it came to that.
func (w *world) crashAt(when string, nth int) (reached func() bool) {
	count := 0
	w.intercept = func(now, _ string, _ client.Object) error {
		if now != when {
			return nil
		}
		if count++; count == nth {
			return errCrash
		}
		return nil
	}
	return func() bool { return count >= nth }
}

// TestKilledAtAnyWriteTheNextDispatcherConverges kills the dispatcher before and after every single write of a rotation
// that has everything in it: finished and live Jobs of the older bundle, a node that fails at first, one that is away.
func TestKilledAtAnyWriteTheNextDispatcherConverges(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		for nth := 1; ; nth++ {
			reached := false
			t.Run(fmt.Sprintf("%s write %d", when, nth), func(t *testing.T) {
				w := newWorld(t)
				w.addNodes(5)
				a := newCA(t, "a")
				w.guard(a)
				for range 3 {
					w.turn()
				}
				w.behave["win-001"] = behaviour{exit: node.ExitDestinationBusy}
				w.setReady("win-004", corev1.ConditionFalse)
				crashed := w.crashAt(when, nth)
				b := a + newCA(t, "b")
				w.guard(b)
				w.settle()
				w.behave = map[string]behaviour{}
				w.setReady("win-004", corev1.ConditionTrue)
				w.pass(3 * time.Minute)
				w.settle()
				w.wantStates(map[State]int{Delivered: 5})
				w.wantEverywhere(b)
				reached = crashed()
			})
			if !reached {
				break
			}
		}
	}
}

func TestAnotherReplicaTakesOverInMidRollout(t *testing.T) {
	for turns := range 8 {
		t.Run(fmt.Sprintf("after %d turns", turns), func(t *testing.T) {
			w, a := delivered(t, 8)
			b := a + newCA(t, "b")
			w.guard(b)
			for range turns {
				w.turn()
			}
			w.restart()
			w.settle()
			w.wantStates(map[State]int{Delivered: 8})
			w.wantEverywhere(b)
			w.wantWrites(map[string]int{"create *v1.ConfigMap": 1, "create *v1.Job": 8, "delete *v1.Job": 8})
		})
	}
}

// TestALeaderThatDoesNotKnowThatItWasReplacedHarmsNothing lets an old leader, with caches and a bundle of long ago, act on
// nodes that another one has delivered a newer bundle to.
func TestALeaderThatDoesNotKnowThatItWasReplacedHarmsNothing(t *testing.T) {
	w, a := delivered(t, 6)
	old := w.dispatchers[0]
	w.restart()
	b := a + newCA(t, "b")
	w.guard(b)
	w.settle()
	for name := range nodeNames(6) {
		old.reconcile(name) // with its old caches: the old Job's UID protects the new one
	}
	old.sync()
	for name := range nodeNames(6) {
		old.reconcile(name) // with new caches and the old bundle
	}
	w.settle()
	w.wantStates(map[State]int{Delivered: 6})
	w.wantEverywhere(b)
	for name, disk := range w.disks {
		if len(disk) != 2 {
			t.Errorf("%s was written %d times, want twice", name, len(disk))
		}
	}
}

func TestTwoDispatchersAtOnceMakeOneJobForANode(t *testing.T) {
	w := newWorld(t, "slowStart: false")
	w.start()
	w.addNodes(6)
	a := newCA(t, "a")
	w.guard(a)
	w.settle()
	w.guard(a + newCA(t, "b"))
	w.settle()
	w.wantStates(map[State]int{Delivered: 6})
	for name, disk := range w.disks {
		if len(disk) != 2 {
			t.Errorf("%s was written %d times, want twice", name, len(disk))
		}
	}
}

// TestAFailingAPIServerIsOutlasted has writes fail in every way in which they can: refused for the moment, in conflict,
// timed out although done.
func TestAFailingAPIServerIsOutlasted(t *testing.T) {
	resource := batchv1.Resource("jobs")
	for name, failure := range map[string]error{
		"too many requests": apierrors.NewTooManyRequests("later", 1),
		"conflict":          apierrors.NewConflict(resource, "any", errExceeded),
		"server timeout":    apierrors.NewServerTimeout(resource, "create", 1),
		"internal error":    apierrors.NewInternalError(errExceeded),
	} {
		for _, when := range []string{"before", "after"} {
			t.Run(name+" "+when+" the write", func(t *testing.T) {
				w, a := delivered(t, 5)
				w.intercept = func(now, _ string, _ client.Object) error {
					if now == when && w.random.IntN(2) == 0 {
						return failure
					}
					return nil
				}
				b := a + newCA(t, "b")
				w.guard(b)
				w.pass(2 * time.Minute)
				w.settle()
				w.wantStates(map[State]int{Delivered: 5})
				w.wantEverywhere(b)
			})
		}
	}
}

// TestWhateverHappensTheClusterConverges does at random what can happen, with a dispatcher whose caches lag, and checks
// after every run that each node ends up with the last bundle. That an older bundle is never written after a newer one
// is checked by the disks themselves.
func TestWhateverHappensTheClusterConverges(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w := newWorld(t)
			w.random = rand.New(rand.NewPCG(seed, 2))
			w.addNodes(4)
			last := newCA(t, "0")
			w.guard(last)
			for step := range 60 {
				last = w.happen(step, last)
			}
			w.heal()
			w.pass(5 * time.Minute)
			w.settle()
			w.pass(time.Hour)
			w.settle()
			w.wantEverywhere(last)
			w.wantStates(map[State]int{Delivered: 4})
			if jobs := len(w.jobsNow()); jobs != 4 {
				t.Errorf("%d Jobs, want one for each of 4 nodes", jobs)
			}
		})
	}
}

// heal takes every trouble away.
func (w *world) heal() {
	w.t.Helper()
	w.intercept = func(string, string, client.Object) error { return nil }
	w.behave = map[string]behaviour{}
	for name := range nodeNames(4) {
		w.changeNode(name, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
	}
}

// happen does one of the things that happen in a cluster, and returns the bundle that is guarded now.
func (w *world) happen(step int, bundle string) string {
	w.t.Helper()
	name := fmt.Sprintf("win-%03d", w.random.IntN(4))
	switch w.random.IntN(14) {
	case 0:
		bundle += newCA(w.t, fmt.Sprint("ca-", step))
		w.guard(bundle)
	case 1:
		w.setReady(name, corev1.ConditionUnknown)
	case 2:
		w.setReady(name, corev1.ConditionTrue)
	case 3:
		w.changeNode(name, func(n *corev1.Node) { n.Status.NodeInfo.BootID = w.id("boot") })
	case 4:
		w.deleteNode(name)
		w.addNode(name)
	case 5:
		for _, job := range w.jobsNow() {
			if job.Name == name {
				w.must(client.IgnoreNotFound(w.api.Delete(w.t.Context(), &job)))
			}
		}
	case 6:
		w.behave[name] = []behaviour{{hangs: true}, {exit: node.ExitWriteFailed}, {exit: node.ExitUsage}, {}}[w.random.IntN(4)]
	case 7:
		w.crashAt([]string{"before", "after"}[w.random.IntN(2)], 1+w.random.IntN(4))
	case 8:
		w.clock.SetTime(w.clock.Now().Add(time.Duration(w.random.IntN(600)) * time.Second))
	case 9:
		w.controllers()
	case 10:
		w.kubelets()
	case 11:
		w.collect()
	case 12:
		w.dispatchers[0].sync()
	default:
		// The caches stay as they are: whatever the dispatcher does, it does on old news.
		r := w.dispatchers[0]
		r.enqueue("", name)
		if !r.work() {
			w.restart()
		}
	}
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	return bundle
}
