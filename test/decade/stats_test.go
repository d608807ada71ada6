package decade

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kubelet-ca-courier/dispatcher"
)

// stats count what happened in a history.
type stats map[counter]int

// counter is what is counted. Every kind of act is a counter too, of those that found somebody to happen to, and every cause
// of a Job.
type counter string

// What is counted beside acts.
const (
	steps              counter = "steps"
	lookups            counter = "reads of the dispatcher"
	rotations          counter = "new signers"
	clientCertificates counter = "new client certificates"
	reviews            counter = "reviews"
	denials            counter = "denials"
	brokenGlass        counter = "CAs dropped by break-glass"
	crashes            counter = "crashes of the dispatcher"
	jobs               counter = "Jobs"
	landings           counter = "landings"
	replaced           counter = "landings that wrote the file"
	stoppedLandings    counter = "landings that were killed"
)

// add adds up.
func (s stats) add(o stats) {
	for what, count := range o {
		s[what] += count
	}
}

// missing are the counters of all that can happen and did not.
func (s stats) missing() []counter {
	all := []counter{
		steps, lookups, rotations, clientCertificates, reviews, denials, brokenGlass, crashes, jobs, landings, replaced, stoppedLandings,
	}
	for _, f := range frequencies() {
		all = append(all, counter(f.what))
	}
	// Left out are CauseEnforce, which takes a rotation in the few days of observe mode, and CauseNode: here a Job goes with its
	// node before another of that name comes. dispatcher/life_test.go has both.
	for _, cause := range []dispatcher.Cause{
		dispatcher.CauseMissing, dispatcher.CauseBundle, dispatcher.CauseSettings, dispatcher.CauseReboot, dispatcher.CauseLook,
		dispatcher.CauseRetry,
	} {
		all = append(all, ofCause(cause))
	}
	return slices.DeleteFunc(all, func(c counter) bool { return s[c] > 0 })
}

// ofCause counts the Jobs that were made for a reason.
func ofCause(cause dispatcher.Cause) counter { return counter("Jobs because of " + cause) }

// String is one line for each counter.
func (s stats) String() string {
	var lines []string
	for what, count := range s {
		lines = append(lines, fmt.Sprintf("%s: %d", what, count))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestAHistoryInWhichNothingHappensIsNoProof(t *testing.T) {
	nothing := stats{}.missing()
	for _, f := range frequencies() {
		if !slices.Contains(nothing, counter(f.what)) {
			t.Errorf("that %q never happened is not told", f.what)
		}
	}
	all := stats{}
	for _, c := range nothing {
		all[c]++
	}
	if missing := all.missing(); len(missing) > 0 {
		t.Errorf("these happened and are missing: %q", missing)
	}
}
