package dispatcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
)

// sameSubject returns CAs of one subject, of which a kubelet tries a hundred.
func sameSubject(t *testing.T, n int) []string {
	t.Helper()
	all := make([]string, n)
	for i := range all {
		all[i] = newCA(t, "same")
	}
	return all
}

func TestAnExtraSourceThatMakesTheUnionTooLargeHoldsNothingElseBack(t *testing.T) {
	same := sameSubject(t, 101)
	guarded, there, more := same[:40], same[40:100], same[100]
	w := newWorld(t, twoSources)
	w.addNodes(2)
	w.guard(strings.Join(guarded, ""))
	w.extra(strings.Join(there, ""))
	w.settle()
	w.wantHolds()
	w.wantEverywhere(strings.Join(same[:100], ""))

	w.extra(strings.Join(there, "") + more)
	w.settle()
	w.wantHolds(bundle.TooManyCAs)
	w.wantEverywhere(strings.Join(same[:100], ""))

	next := newCA(t, "next")
	w.guard(strings.Join(guarded, "") + next)
	w.settle()
	w.wantHolds(bundle.TooManyCAs)
	w.wantEverywhere(strings.Join(same[:100], "") + next)
}

func TestAnExtraSourceForWhichThereIsNoRoomAtFirstContributesNothing(t *testing.T) {
	same := sameSubject(t, 101)
	guarded := Ref{"sources", "guarded", "ca"}
	large, small := Ref{"sources", "large", "ca"}, Ref{"sources", "small", "ca"}
	contents := map[Ref]Content{
		guarded: {Data: []byte(strings.Join(same[:60], ""))},
		large:   {Data: []byte(strings.Join(same[60:], ""))},
		small:   {Data: []byte(newCA(t, "other"))},
	}
	for _, required := range []bool{false, true} {
		c := Assemble(Settings{Guarded: guarded, ExtraSources: []Source{{large, required}, {small, true}}}, contents, nil, time.Now())
		if len(c.Holds) != 1 || c.Holds[0].Source != large || c.Holds[0].Code != bundle.TooManyCAs {
			t.Errorf("held: %v, want the large source for what is too many", c.Holds)
		}
		if required != (c.PEM == nil) {
			t.Errorf("the large source is required: %v; a candidate of %d bytes", required, len(c.PEM))
		}
		got, _ := bundle.Parse(c.PEM)
		if !required && (len(got.Certificates) != 61 || slices.Contains(fingerprints(got), fingerprintOf(t, same[100]))) {
			t.Errorf("%d certificates, want the guarded and the small source's 61", len(got.Certificates))
		}
	}
}
