// Package scale measures a rollout to many nodes on a real control plane, against a plain loop that creates the same Jobs.
package scale

import (
	"flag"
	"testing"
	"time"

	"kubelet-ca-courier/test/scale/lab"
)

var (
	nodes  = flag.Int("nodes", 100, "number of nodes")
	loops  = flag.Bool("loops", true, "compare with the plain loop; without, only writes and memory are looked at")
	strict = flag.Bool("strict", false, "fail when a ratio is beyond what the design promises for this number of nodes")
	idle   = flag.Duration("idle", 20*time.Second, "how long to watch for writes once nothing is to be done")
)

const (
	// loopWorkers is how many requests the loop has under way.
	loopWorkers = 32
	// sources is where the guarded ConfigMap is.
	sources = "sources"
	// patience ends a test that hangs; what is measured is compared within the run, never with it.
	patience = time.Hour
)

func TestScale(t *testing.T) {
	l := lab.Start(t)
	l.Controllers(t)
	l.Kwok(t)
	b := &bench{t: t, l: l, client: clientFor(t, l.Config)}
	b.prepare()
	jobs := b.watchJobs()
	program := build(t)

	// A control plane gets slower with what it has been through: the loop runs before and after.
	before := b.loop(jobs, "before")
	unlimited := b.rollout(jobs, program, "slowStart: false", 0, "first")
	b.clear(jobs)
	paced := b.rollout(jobs, program, "", *idle, "second", "third")
	b.clear(jobs)
	after := b.loop(jobs, "after")

	loop := (before + after) / 2
	t.Logf("%d nodes, plain loop with %d workers: %.1f s before and %.1f s after what follows; their mean counts",
		*nodes, loopWorkers, before.Seconds(), after.Seconds())
	b.report("pace unlimited", unlimited, loop, limitFor(*nodes, true))
	b.report("default pace", paced, loop, limitFor(*nodes, false))
}

// limitFor is the ratio that the design promises, or 0 where it promises none.
func limitFor(n int, unlimited bool) float64 {
	switch {
	case n < 1000:
		return 0
	case unlimited:
		return 1.1
	case n < 5000:
		return 1.4
	default:
		return 1.15
	}
}

// measured is what was seen of one life of the dispatcher.
type measured struct {
	// rounds are the times from the write of the ConfigMap to the last Job's completion; all but the first are
	// rotations, in which every node's old Job goes.
	rounds []time.Duration
	// writes are those of the dispatcher, per round, by verb and resource.
	writes []map[string]int
	// idle are those once nothing was to be done.
	idle    map[string]int
	idleFor time.Duration
	// peak and resident are memory in MiB.
	peak, resident int
	// processor is the processor time of the whole life.
	processor time.Duration
}

// report logs the figures, and fails for those that are beyond what is promised.
func (b *bench) report(what string, m measured, loop time.Duration, limit float64) {
	b.t.Helper()
	for i, took := range m.rounds {
		kind := "first delivery"
		if i > 0 {
			kind = "rotation"
		}
		ratio := 0.0
		if loop > 0 {
			ratio = took.Seconds() / loop.Seconds()
		}
		perNode := float64(m.writes[i]["create jobs"]+m.writes[i]["delete jobs"]) / float64(*nodes)
		b.t.Logf("%d nodes, %s, %s: %.1f s, %.2f times the loop; %.2f writes of Jobs a node; all writes: %v",
			*nodes, what, kind, took.Seconds(), ratio, perNode, m.writes[i])
		if perNode > 2 {
			b.t.Errorf("%s, %s: %.2f writes of Jobs a node, want at most 2", what, kind, perNode)
		}
		if *strict && i == 0 && limit > 0 && ratio > limit {
			b.t.Errorf("%s, %s: %.2f times the loop, want at most %.2f", what, kind, ratio, limit)
		}
	}
	b.t.Logf("%d nodes, %s: %d MiB resident, %d MiB at the peak; %.1f s of processor time; writes in %s of idleness: %v",
		*nodes, what, m.resident, m.peak, m.processor.Seconds(), m.idleFor, m.idle)
	if len(m.idle) > 0 {
		b.t.Errorf("%s: wrote while nothing was to be done: %v", what, m.idle)
	}
	if m.peak > 100 {
		b.t.Errorf("%s: %d MiB at the peak, want at most 100", what, m.peak)
	}
}
