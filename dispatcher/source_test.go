package dispatcher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/node"
)

const twoSources = "extraSources: [{namespace: sources, name: extra, key: ca}]"

// extra writes the extra source.
func (w *world) extra(text string) {
	w.t.Helper()
	w.apply("sources", "extra", map[string]string{"ca": text}, nil)
}

// wantHolds compares the codes of what is held, as an admin's plugin sees it, and the number of events about it.
func (w *world) wantHolds(codes ...bundle.Code) {
	w.t.Helper()
	plan, err := Load(w.t.Context(), w.api, DefaultWhere(), w.clock.Now())
	w.must(err)
	var got []string
	for _, hold := range plan.Resolution.Holds {
		got = append(got, string(hold.Code))
	}
	var want []string
	for _, code := range codes {
		want = append(want, string(code))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		w.t.Errorf("held for %v, want %v", got, want)
	}
	if told := w.events()[ReasonHeld]; len(codes) > 0 && told == 0 {
		w.t.Error("no event tells what is held")
	}
}

func TestTheUnionOfAllSourcesIsDelivered(t *testing.T) {
	w := newWorld(t, twoSources)
	w.addNodes(2)
	a, b := newCA(t, "a"), newCA(t, "b")
	w.guard(a)
	w.extra(b + a)
	w.settle()
	w.wantEverywhere(a + b)
	w.wantHolds()
	w.writes = map[string]int{}
	w.guard(a + b) // the union stays, only who contributed what changes
	w.settle()
	w.wantWrites(map[string]int{"update *v1.ConfigMap": 1})
}

func TestASourceThatGoesBadTakesNothingAwayAndBlocksNothing(t *testing.T) {
	a, b := newCA(t, "a"), newCA(t, "b")
	for _, test := range []struct {
		name string
		harm func(w *world)
		code bundle.Code
	}{
		{"deleted", func(w *world) {
			w.must(w.api.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: objectMeta("sources", "extra")}))
		}, SourceMissing},
		{"without its key", func(w *world) { w.apply("sources", "extra", map[string]string{"other": b}, nil) }, SourceMissing},
		{"malformed", func(w *world) { w.extra("-----BEGIN CERTIFICATE-----\nbroken") }, bundle.BrokenPEM},
		{"emptied", func(w *world) { w.extra("") }, bundle.MissingBundle},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				w := newWorld(t, twoSources)
				w.addNodes(2)
				w.guard(a)
				w.extra(b)
				w.settle()
				test.harm(w)
				if restart {
					w.restart()
				}
				w.settle()
				w.wantEverywhere(a + b)
				d := newCA(t, "d")
				w.guard(a + d)
				w.settle()
				w.wantEverywhere(a + b + d)
				w.wantHolds(test.code)
			})
		}
	}
}

func TestAMissingSourceHoldsTheFirstDeliveryOnlyIfItIsRequired(t *testing.T) {
	for _, required := range []bool{false, true} {
		settings := strings.Replace(twoSources, "key: ca}", "key: ca, required: true}", 1)
		if !required {
			settings = twoSources
		}
		w := newWorld(t, settings)
		w.addNodes(1)
		a := newCA(t, "a")
		w.guard(a)
		w.settle()
		if required {
			w.wantHolds(SourceMissing)
			w.wantWritten(map[string]int{})
		} else {
			w.wantHolds()
			w.wantEverywhere(a)
		}
		b := newCA(t, "b")
		w.extra(b)
		w.settle()
		w.wantHolds()
		w.wantEverywhere(a + b)
	}
}

func TestABundleThatTheGateDeniesIsHeldAndNodesKeepWhatTheyHave(t *testing.T) {
	a, b := newCA(t, "a"), newCA(t, "b")
	for _, test := range []struct {
		name, text string
		code       bundle.Code
	}{
		{"malformed, and forced in while the webhook was away", a + "-----BEGIN CERTIFICATE-----\nAAAA", bundle.BrokenPEM},
		{"a valid CA dropped, and the rest malformed", b + "-----BEGIN CERTIFICATE-----\nAAAA", bundle.BrokenPEM},
		{"emptied", "", bundle.MissingBundle},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.addNodes(2)
			w.guard(a)
			w.settle()
			w.guard(test.text)
			w.settle()
			w.wantHolds(test.code)
			w.wantWritten(map[string]int{"win-000": 1, "win-001": 1})
			w.addNode("newcomer")
			w.settle()
			w.wantEverywhere(a)
			w.guard(a + b)
			w.settle()
			w.wantHolds()
			w.wantEverywhere(a + b)
			if w.events()[ReasonResumed] != 1 {
				t.Error("no event tells that nothing is held any more")
			}
		})
	}
}

func TestADropThatSlippedPastAdmissionTakesNothingAwayAndKeepsNoLaterSignerBack(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for source, write := range map[string]func(w *world, text string){"guarded": (*world).guard, "extra": (*world).extra} {
			t.Run(fmt.Sprintf("%s, restart %t", source, restart), func(t *testing.T) {
				w := newWorld(t, twoSources)
				a, b, c, z := newCA(t, "a"), newCA(t, "b"), newCA(t, "c"), newCA(t, "z")
				w.addNodes(2)
				w.guard(z)
				w.extra(z)
				write(w, z+a)
				w.settle()
				w.wantEverywhere(z + a)
				write(w, z+b)
				w.settle()
				w.wantHolds(bundle.DropsValidCA)
				w.wantEverywhere(z + a + b)
				if restart {
					w.restart()
				}
				write(w, z+c+b)
				w.settle()
				w.wantHolds(bundle.DropsValidCA)
				w.wantEverywhere(z + a + b + c)
				write(w, z+a+b+c)
				w.settle()
				w.wantHolds()
				w.wantEverywhere(z + a + b + c)
			})
		}
	}
}

func TestASourceTakenOutOfTheSettingsKeepsNoLaterSignerBack(t *testing.T) {
	w := newWorld(t, twoSources)
	a, b, c := newCA(t, "a"), newCA(t, "b"), newCA(t, "c")
	w.addNodes(2)
	w.guard(a)
	w.extra(b)
	w.settle()
	w.configure()
	w.settle()
	w.wantHolds(bundle.DropsValidCA)
	w.wantEverywhere(a + b)
	w.guard(a + c)
	w.settle()
	w.wantHolds(bundle.DropsValidCA)
	w.wantEverywhere(a + b + c)
	w.apply("sources", "guarded", map[string]string{"ca": a + c}, map[string]string{bundle.AllowanceAnnotation: fingerprintOf(t, b)})
	w.settle()
	w.wantHolds()
	w.wantEverywhere(a + c)
}

func TestBreakGlassWorksInASourceThatIsHeldForSomethingElse(t *testing.T) {
	for name, harm := range map[string]func(w *world, kept string){
		"another drop slipped in": func(*world, string) {},
		"malformed":               func(w *world, kept string) { w.extra(kept + "-----BEGIN CERTIFICATE-----\nbroken") },
		"deleted": func(w *world, _ string) {
			w.must(w.api.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: objectMeta("sources", "extra")}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, twoSources)
			stolen, slipped, a := newCA(t, "stolen"), newCA(t, "slipped"), newCA(t, "a")
			w.addNodes(2)
			w.guard(stolen + slipped + a)
			w.extra(stolen + a)
			w.settle()
			w.guard(stolen + a)
			w.settle()
			w.wantHolds(bundle.DropsValidCA)
			w.extra(a)
			harm(w, a)
			w.apply("sources", "guarded", map[string]string{"ca": a}, map[string]string{bundle.AllowanceAnnotation: fingerprintOf(t, stolen)})
			w.settle()
			w.wantEverywhere(slipped + a)
		})
	}
}

func TestAHeldBundleThatIsWithdrawnLeavesNoTrace(t *testing.T) {
	w, a := delivered(t, 2)
	w.guard("broken")
	w.settle()
	w.guard(a)
	w.settle()
	w.wantHolds()
	w.wantWrites(map[string]int{})
}

func TestTheDeletedGuardedConfigMapChangesNothing(t *testing.T) {
	w, a := delivered(t, 2)
	w.must(w.api.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: objectMeta("sources", "guarded")}))
	w.edits++
	w.settle()
	w.wantHolds(SourceMissing)
	w.wantWrites(map[string]int{})
	w.guard(a)
	w.settle()
	w.wantHolds()
	w.wantWrites(map[string]int{})
}

func TestBreakGlassLetsExactlyTheNamedCAGo(t *testing.T) {
	w := newWorld(t)
	w.addNodes(2)
	a, b := newCA(t, "a"), newCA(t, "b")
	w.guard(a + b)
	w.settle()
	allow := map[string]string{bundle.AllowanceAnnotation: fingerprintOf(t, b)}
	w.apply("sources", "guarded", map[string]string{"ca": a}, allow)
	w.settle()
	w.wantHolds()
	w.wantEverywhere(a)
	if w.events()[ReasonAllowedDrop] == 0 {
		t.Error("no event tells of the use of break-glass")
	}
}

func TestThePassingOfTimeDeliversNothing(t *testing.T) {
	w := newWorld(t, "lookAgain: 100000h")
	w.addNodes(2)
	a, b := newCA(t, "a"), newCAUntil(t, "b", w.clock.Now().Add(48*time.Hour))
	w.guard(a + b)
	w.settle()
	w.writes = map[string]int{}
	w.clock.SetTime(w.clock.Now().Add(72 * time.Hour)) // b has expired
	w.restart()
	w.settle()
	w.wantWrites(map[string]int{})
	w.wantHolds()
}

func TestASourceThatMayNotBeReadIsAHoldAndAnyOtherFailureIsNone(t *testing.T) {
	ref := Ref{"sources", "extra", "ca"}
	object := &corev1.ConfigMap{}
	content := readContent(ref, object, apierrors.NewForbidden(corev1.Resource("configmaps"), "extra", errExceeded))
	c := Assemble(Settings{Guarded: ref}, map[Ref]Content{ref: content}, nil, time.Now())
	if len(c.Holds) != 1 || c.Holds[0].Code != SourceUnreadable || c.PEM != nil {
		t.Errorf("candidate %+v, want none, held as unreadable", c)
	}
}

func TestTheKeyIsFoundInBinaryDataToo(t *testing.T) {
	object := &corev1.ConfigMap{BinaryData: map[string][]byte{"ca": []byte("x")}}
	if got := readContent(Ref{Key: "ca"}, object, nil); string(got.Data) != "x" {
		t.Errorf("content %q", got.Data)
	}
}

func TestATamperedSnapshotIsNotDeliveredAndIsWrittenAgain(t *testing.T) {
	w, a := delivered(t, 1)
	name := snapshotName(hashOf(t, a))
	snapshot := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: JobsNamespace, Name: name}
	w.must(w.api.Get(t.Context(), key, snapshot))
	w.must(w.api.Delete(t.Context(), snapshot))
	forged := &corev1.ConfigMap{
		ObjectMeta: objectMeta(JobsNamespace, name),
		Immutable:  snapshot.Immutable,
		Data:       map[string]string{node.BundleKey: newCA(t, "rogue")},
	}
	forged.Labels, forged.Annotations = snapshot.Labels, snapshot.Annotations
	w.must(w.api.Create(t.Context(), forged))
	w.edits++
	w.settle()
	w.must(w.api.Get(t.Context(), key, snapshot))
	if _, err := ReadSnapshot(snapshot); err != nil {
		t.Error(err)
	}
	w.wantEverywhere(a)
}

func TestThePlanSaysWhatTheDispatcherWouldDo(t *testing.T) {
	w, a := delivered(t, 3)
	w.setReady("win-002", corev1.ConditionFalse)
	b := a + newCA(t, "b")
	w.guard(b)
	before := w.mutations
	plan, err := Load(t.Context(), w.api, DefaultWhere(), w.clock.Now())
	w.must(err)
	if w.mutations != before {
		t.Error("the plan wrote something")
	}
	if plan.Target == nil || plan.Target.Snapshot.Hash != hashOf(t, b) || plan.Resolution.Current.Hash != hashOf(t, a) {
		t.Fatalf("target %+v", plan.Target)
	}
	got := map[string]State{}
	for _, status := range plan.Nodes {
		got[status.Node.Name] = status.Decision.State
	}
	if got["win-000"] != Queued || got["win-001"] != Queued || got["win-002"] != NotReady {
		t.Errorf("states %v", got)
	}
}

// TestFailingAndAbsentNodesHoldUpNoOther compares a rollout to 160 healthy nodes with one in which 20 more fail for ever
// and 20 more are not Ready, in turns of the cluster. With the slow start, a failure costs the doubling that its success
// would have brought, and no more.
func TestFailingAndAbsentNodesHoldUpNoOther(t *testing.T) {
	for _, test := range []struct {
		name, pace string
		late       int
	}{
		{"without slow start", "slowStart: false", 0},
		{"with slow start", "slowStart: true", 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			alone, troubled := turnsToDeliver(t, test.pace, 0), turnsToDeliver(t, test.pace, 40)
			t.Logf("160 healthy nodes: %d turns alone, %d beside 40 in trouble", alone, troubled)
			if troubled > alone+test.late {
				t.Errorf("%d turns beside nodes in trouble, %d without", troubled, alone)
			}
		})
	}
}

// turnsToDeliver returns how many turns it takes until 160 healthy nodes have the bundle, beside some that fail or are away.
func turnsToDeliver(t *testing.T, pace string, troubled int) int {
	t.Helper()
	w := newWorld(t, pace)
	w.addNodes(160 + troubled)
	for i := range troubled { // the first ones, so that they are all in the way
		w.behave[nodeName(i)] = behaviour{exit: node.ExitWriteFailed}
		if i%2 == 0 {
			w.setReady(nodeName(i), corev1.ConditionUnknown)
		}
	}
	w.guard(newCA(t, "a"))
	for turn := 1; ; turn++ {
		w.turn()
		if w.states()[Delivered] >= 160 {
			return turn
		}
		w.clock.SetTime(w.clock.Now().Add(time.Second))
	}
}

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// fingerprintOf is the fingerprint of the one certificate of a text.
func fingerprintOf(t *testing.T, text string) string {
	t.Helper()
	parsed, findings := bundle.Parse([]byte(text))
	if len(findings) > 0 || len(parsed.Certificates) != 1 {
		t.Fatalf("not one certificate: %v", findings)
	}
	return parsed.Certificates[0].Fingerprint.String()
}
