package dispatcher

import (
	"maps"
	"slices"
	"time"

	"kubelet-ca-courier/bundle"
)

// Resolution says what is to be delivered, what has to be written first, and what is held.
type Resolution struct {
	// Candidate is what the sources say.
	Candidate Candidate
	// Current is what nodes get as long as nothing is accepted; nil before the first delivery.
	Current *Snapshot
	// Next is the snapshot to write: a new one, an old one that comes back, or the current one with its record of
	// sources brought up to date. Nil when everything is as it should be.
	Next *Snapshot
	// Holds says why something is not delivered as its source has it.
	Holds []Hold
	// Warnings are those of the gate about Next.
	Warnings []bundle.Finding
}

// Deliver returns what nodes should hold once Next is written; nil when nothing was ever accepted.
func (r Resolution) Deliver() *Snapshot {
	if r.Next != nil {
		return r.Next
	}
	return r.Current
}

// outrank moves what is delivered in front of a Job of the given sequence. A Job is younger than the snapshot of its
// sequence; where no such snapshot is, somebody deleted it, and the Job would keep what is delivered now from its node.
func (r *Resolution) outrank(sequence int64) {
	deliver := r.Deliver()
	if deliver == nil || deliver.Sequence >= sequence {
		return
	}
	next := *deliver
	next.Sequence = sequence + 1
	r.Next = &next
}

// withDropped adds to a candidate that is denied for nothing but what it drops, as when a source is taken out of the
// settings, what nodes have now: so that it is held without holding back what is new. The verdict is that on the outcome.
func withDropped(c Candidate, current *Snapshot, verdict bundle.Verdict, now time.Time) (Candidate, bundle.Verdict) {
	if current == nil {
		return c, verdict
	}
	is, _ := bundle.Parse(c.PEM)
	was, _ := bundle.Parse(current.PEM)
	if was = without(was, c.Allow, c.PEM); was == nil {
		return c, verdict
	}
	both := keeping(was, current.PEM, is, verdict, c.Allow, now)
	if both == was {
		return c, verdict
	}
	c.PEM, c.Hash = both.Canonical(), both.Hash()
	return c, Judge(c, current, now)
}

// Resolve compares the sources with the snapshots. The clock only ever tells whether a change may be delivered; without a
// change in the sources, time passes without consequence.
func Resolve(s Settings, contents map[Ref]Content, snapshots []Snapshot, now time.Time) Resolution {
	current := Current(snapshots)
	candidate := Assemble(s, contents, current, now)
	r := Resolution{Candidate: candidate, Current: current, Holds: candidate.Holds}
	switch {
	case candidate.PEM == nil:
	case current != nil && current.Hash == candidate.Hash:
		if !maps.EqualFunc(current.Contributions, candidate.Contributions, slices.Equal) {
			next := *current
			next.Contributions = candidate.Contributions
			r.Next = &next
		}
	default:
		verdict := Judge(candidate, current, now)
		if !verdict.Allowed {
			r.Holds = append(r.Holds, holdsOf(Ref{}, verdict)...)
			if candidate, verdict = withDropped(candidate, current, verdict, now); !verdict.Allowed || candidate.Hash == current.Hash {
				return r
			}
		}
		r.Warnings = verdict.Warnings
		r.Next = &Snapshot{
			Name:          snapshotName(candidate.Hash),
			Hash:          candidate.Hash,
			PEM:           candidate.PEM,
			Sequence:      now.UnixMilli(),
			Accepted:      now,
			Contributions: candidate.Contributions,
		}
		if current != nil {
			r.Next.Sequence = max(r.Next.Sequence, current.Sequence+1)
		}
	}
	return r
}
