package decade

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// The fixed set lives through everything that can happen.
const (
	fixedSeeds = 12
	fixedYears = 2
)

var (
	seeds = flag.Uint64("seeds", fixedSeeds, "how many clusters live")
	first = flag.Uint64("first", 1, "the seed of the first")
	years = flag.Float64("years", fixedYears, "how many years each lives; clusters in short-rotation testing live a tenth of that")
	told  = flag.Int("told", 60, "how many of the last lines of a broken history are printed")
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	m.Run()
}

func TestDecadesPassWithoutABrokenPromise(t *testing.T) {
	total, whole := stats{}, uint64(0)
	lived := 0.0 // in years: a Duration ends after 292
	started := time.Now()
	for seed := *first; seed < *first+*seeds; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			h := makeHistory(seed, time.Duration(*years*float64(365*day)))
			w := live(h)
			if w.broken != nil {
				t.Fatal(explain(h, w.broken))
			}
			total.add(w.stats)
			whole++
			lived += h.length.Hours() / 24 / 365
		})
	}
	t.Logf("%.1f cluster-years of %d clusters in %s:\n%s", lived, whole, time.Since(started).Round(time.Second), total)
	if whole >= fixedSeeds && *years >= fixedYears {
		if missing := total.missing(); len(missing) > 0 {
			t.Errorf("these never happened: %q", missing)
		}
	}
}

// explain is the shortest history that breaks the promise, and what happened last in it.
func explain(h history, broken *violation) string {
	short, w := shortest(h, broken)
	if w == nil {
		return fmt.Sprintf("seed %d: %s: %s (and not when run again)", h.seed, broken.promise, broken.about)
	}
	last := w.told[max(0, len(w.told)-*told):]
	return fmt.Sprintf("BROKEN: %s\n%s: %s\nthe shortest history:\n%s\nwhat happened last:\n%s", w.broken.promise,
		w.broken.at.Format(time.DateTime), w.broken.about, short, strings.Join(last, "\n"))
}
