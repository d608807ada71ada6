package dispatcher

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"kubelet-ca-courier/node"
)

func paceSettings(limit int, slow bool) Settings {
	return Settings{MaxParallel: limit, SlowStart: &slow}
}

// TestInFlightAreNeverMoreThanTheLimits runs random rollouts and counts.
func TestInFlightAreNeverMoreThanTheLimits(t *testing.T) {
	for _, limit := range []int{0, 1, 3, 20} {
		t.Run(fmt.Sprintf("at most %d", limit), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, uint64(limit)))
			states := map[string]State{}
			for name := range nodeNames(100) {
				states[name] = Queued
			}
			p := NewPace(paceSettings(limit, true), states)
			for name := range nodeNames(100) {
				p.Admit(name, 1+random.IntN(2))
			}
			succeeded, tries := 0, 0
			for p.Active() > 0 {
				inFlight := p.Count(InFlight)
				if inFlight > 1+succeeded || limit > 0 && inFlight > limit {
					t.Fatalf("%d in flight after %d have succeeded", inFlight, succeeded)
				}
				if inFlight == 0 {
					t.Fatalf("%d nodes wait, and none is in flight", p.Count(Queued))
				}
				for name := range nodeNames(100) {
					if p.nodes[name] != InFlight || random.IntN(3) > 0 {
						continue
					}
					tries++
					if random.IntN(3) == 0 {
						p.Set(name, Backoff)
						p.Admit(name, 2)
						continue
					}
					succeeded++
					p.Set(name, Delivered)
				}
			}
			if succeeded != 100 {
				t.Errorf("%d of 100 nodes succeeded after %d tries", succeeded, tries)
			}
		})
	}
}

func TestWithoutSlowStartEveryoneStartsAtOnce(t *testing.T) {
	states := map[string]State{}
	for name := range nodeNames(50) {
		states[name] = Queued
	}
	p := NewPace(paceSettings(0, false), states)
	for name := range nodeNames(50) {
		if !p.Admit(name, 1) {
			t.Fatalf("%s has to wait", name)
		}
	}
}

func TestASlowNodeLeavesItsPlaceButCountsAgainstMaxParallel(t *testing.T) {
	p := NewPace(paceSettings(2, true), map[string]State{"a": Queued, "b": Queued, "c": Queued})
	if !p.Admit("a", 1) || p.Admit("b", 1) || p.Admit("c", 1) {
		t.Fatal("the canary is not alone")
	}
	if _, turn := p.Set("a", Slow); len(turn) != 1 || turn[0] != "b" {
		t.Fatalf("the turn has come of %v, want b", turn)
	}
	if _, turn := p.Set("b", Slow); len(turn) != 0 {
		t.Fatalf("the turn has come of %v although two are at work", turn)
	}
	if turn := p.Forget("a"); len(turn) != 1 || turn[0] != "c" {
		t.Fatalf("the turn has come of %v, want c", turn)
	}
}

func TestNodesThatWereNotTriedYetGoFirst(t *testing.T) {
	p := NewPace(paceSettings(1, true), map[string]State{"a": Queued, "failed": Backoff, "fresh": Queued})
	p.Admit("a", 1)
	p.Admit("failed", 2)
	p.Admit("fresh", 1)
	if _, turn := p.Set("a", Delivered); len(turn) != 1 || turn[0] != "fresh" {
		t.Errorf("the turn has come of %v, want fresh", turn)
	}
}

// BenchmarkEvent shows that the cost of an event does not depend on the number of nodes.
func BenchmarkEvent(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d nodes", count), func(b *testing.B) {
			states := map[string]State{}
			for i := range count {
				states[strconv.Itoa(i)] = Delivered
			}
			p := NewPace(paceSettings(0, true), states)
			for b.Loop() {
				p.Set("7", InFlight)
				p.Set("7", Delivered)
			}
		})
	}
}

func TestBackOffGrowsIsBoundedAndDiffersBetweenNodes(t *testing.T) {
	final, passing := node.ExitUsage, node.ExitWriteFailed
	if a, b := retryAfter("a", 1, &passing), retryAfter("b", 1, &passing); a == b {
		t.Error("two nodes come back at one time")
	}
	if first, again := retryAfter("a", 3, nil), retryAfter("a", 3, nil); first != again {
		t.Error("the wait is not the node's own")
	}
	for attempt := range 1000 {
		low := min(retryFirst<<min(attempt, 20), retryLast)
		for _, exit := range []*node.ExitCode{nil, &passing, &final} {
			wait := retryAfter("a", attempt+1, exit)
			if exit != &final && wait < low || wait > retryLast*6/5 {
				t.Errorf("attempt %d waits %s, want %s to %s", attempt+1, wait, low, retryLast*6/5)
			}
		}
	}
	if retryAfter("a", 1, &final) < 4*retryAfter("a", 1, &passing) {
		t.Error("a failure that trying again cannot mend is tried again as soon as any")
	}
}

func TestSecondLooksAreSpread(t *testing.T) {
	const count, buckets = 5000, 12
	seen := make([]int, buckets)
	for i := range count {
		wait := lookAfter(fmt.Sprintf("win-%d", i), 24*time.Hour)
		if wait <= 12*time.Hour || wait > 24*time.Hour {
			t.Fatalf("a look after %s", wait)
		}
		seen[int((24*time.Hour-wait)/time.Hour)]++
	}
	for hour, got := range seen {
		if got < count/buckets*3/4 || got > count/buckets*5/4 {
			t.Errorf("%d looks in hour %d, want about %d", got, hour, count/buckets)
		}
	}
}
