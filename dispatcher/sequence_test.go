package dispatcher

import (
	"math"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// snapshots lists what is stored.
func (w *world) snapshots() []corev1.ConfigMap {
	w.t.Helper()
	list := &corev1.ConfigMapList{}
	w.must(w.api.List(w.t.Context(), list, client.InNamespace(JobsNamespace), client.MatchingLabels{LabelManagedBy: ManagedBy}))
	return list.Items
}

func TestTimeThatGoesBackADayHoldsNoLaterBundleUp(t *testing.T) {
	for _, restart := range []bool{false, true} {
		w, a := delivered(t, 3)
		w.clock.SetTime(w.clock.Now().Add(24 * time.Hour))
		b := a + newCA(t, "b")
		w.guard(b)
		w.settle()
		w.wantEverywhere(b)
		w.clock.SetTime(w.clock.Now().Add(-24 * time.Hour))
		if restart {
			w.restart()
		}
		w.writes = map[string]int{}
		c := b + newCA(t, "c")
		w.guard(c)
		w.settle()
		w.wantStates(map[State]int{Delivered: 3})
		w.wantEverywhere(c)
		w.wantWrites(map[string]int{"create *v1.ConfigMap": 1, "create *v1.Job": 3, "delete *v1.Job": 3})
	}
}

func TestJobsOfSnapshotsThatAreGoneHoldNoNodeUp(t *testing.T) {
	for _, test := range []struct {
		name string
		// lose deletes snapshots, and returns the bundle that the sources have from then on.
		lose func(w *world, a, b string) string
		// behind is how far time goes back afterwards.
		behind time.Duration
	}{
		{"all of them, the sources unchanged", func(w *world, _, b string) string {
			for _, object := range w.snapshots() {
				w.must(w.api.Delete(w.t.Context(), &object))
			}
			w.edits++
			return b
		}, 24 * time.Hour},
		{"all of them, and a new bundle", func(w *world, _, b string) string {
			for _, object := range w.snapshots() {
				w.must(w.api.Delete(w.t.Context(), &object))
			}
			c := b + newCA(w.t, "c")
			w.guard(c)
			return c
		}, 24 * time.Hour},
		{"the newest, and the sources are as before it", func(w *world, a, b string) string {
			newest := metav1.ObjectMeta{Namespace: JobsNamespace, Name: snapshotName(hashOf(w.t, b))}
			w.must(w.api.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: newest}))
			w.guard(a)
			return a
		}, 0},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				w, a := delivered(t, 3)
				w.clock.SetTime(w.clock.Now().Add(time.Minute + test.behind))
				b := a + newCA(t, "b")
				w.guard(b)
				w.settle()
				w.wantEverywhere(b)
				w.clock.SetTime(w.clock.Now().Add(-test.behind))
				want := test.lose(w, a, b)
				if restart {
					w.restart()
				}
				w.settle()
				w.wantStates(map[State]int{Delivered: 3})
				w.wantEverywhere(want)
			})
		}
	}
}

func TestASequenceThatIsNoTimeCountsForNothing(t *testing.T) {
	w, a := delivered(t, 2)
	job := w.job("win-000")
	job.Annotations[AnnotationSequence] = strconv.FormatInt(math.MaxInt64, 10)
	w.must(w.api.Update(t.Context(), job))
	snapshot := w.snapshots()[0]
	snapshot.Annotations[AnnotationSequence] = strconv.FormatInt(math.MaxInt64, 10)
	w.must(w.api.Update(t.Context(), &snapshot))
	b := a + newCA(t, "b")
	w.guard(b)
	w.settle()
	w.wantStates(map[State]int{Delivered: 2})
	w.wantEverywhere(b)
}
