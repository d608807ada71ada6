package dispatcher

import (
	"time"

	"kubelet-ca-courier/node"
)

// State says where a node stands. Every node that is served is in exactly one.
type State string

const (
	// Delivered says that the node holds the bundle.
	Delivered State = "Delivered"
	// WouldChange says that the node was only looked at, and that its file is not right.
	WouldChange State = "WouldChange"
	// WouldRemove says the same, and that the file holds a CA that no source has.
	WouldRemove State = "WouldRemove"
	// InFlight says that the node's Job is at work.
	InFlight State = "InFlight"
	// Slow says that the Job is at work for so long that it keeps no other node waiting.
	Slow State = "Slow"
	// Queued says that the node waits for its turn.
	Queued State = "Queued"
	// Removing says that a superseded Job and its pod have to be gone first.
	Removing State = "Removing"
	// NotReady says that the node needs a delivery and gets it when it is Ready again.
	NotReady State = "NotReady"
	// Backoff says that the last Job failed, and that the next one waits for its time.
	Backoff State = "Failed"
	// Blocked says that no Job can be made: the API server refuses it, or something else has its name.
	Blocked State = "Blocked"
)

// states are all states, in the order in which tables show them.
var states = [...]State{Delivered, WouldChange, WouldRemove, InFlight, Slow, Queued, Removing, NotReady, Backoff, Blocked}

// Done reports whether nothing is left to do at the node for now.
func (s State) Done() bool { return s == Delivered || s == WouldChange || s == WouldRemove }

// Active reports whether the rollout is still at work on the node, or about to be.
func (s State) Active() bool { return s == InFlight || s == Slow || s == Queued || s == Removing }

// Cause is the reason for which a node gets a Job.
type Cause string

const (
	// CauseMissing says that there was none: the node is new, or someone deleted its Job.
	CauseMissing Cause = "no-job"
	// CauseBundle says that the last Job delivered another bundle, or to another path.
	CauseBundle Cause = "bundle"
	// CauseSettings says that the last Job had not succeeded and would be built otherwise now.
	CauseSettings Cause = "settings"
	// CauseEnforce says that the node had only been looked at.
	CauseEnforce Cause = "enforce"
	// CauseNode says that the last Job was for an earlier node of the same name.
	CauseNode Cause = "node-replaced"
	// CauseReboot says that the node has booted since.
	CauseReboot Cause = "reboot"
	// CauseLook says that it was time to look again.
	CauseLook Cause = "look"
	// CauseRetry says that the last Job failed.
	CauseRetry Cause = "retry"
)

// Action is a write.
type Action string

const (
	// Nothing writes nothing.
	Nothing Action = ""
	// Create makes the node's Job.
	Create Action = "Create"
	// Replace deletes a Job whose pod has surely ended, and makes the new one at once.
	Replace Action = "Replace"
	// Remove deletes a Job whose pod may still run. The new one is made when both are gone.
	Remove Action = "Remove"
)

// Decision says what a node needs.
type Decision struct {
	State  State
	Action Action
	// Cause is the reason for Create, Replace and Remove.
	Cause Cause
	// Paced says that the action starts a delivery and has to wait for the node's turn.
	Paced bool
	// Attempt is the number of the Job to be made.
	Attempt int
	// After is how long this decision holds if nothing else changes; 0 is for ever.
	After time.Duration
}

// Decide says what a node needs, given the one Job of its name. It is a function of its arguments alone.
func Decide(t Target, n Node, job *Record, now time.Time) Decision {
	switch {
	case job == nil:
		return deliver(n, Create, CauseMissing, 1)
	case job.NodeName != n.Name:
		return Decision{State: Blocked, After: patience}
	case job.Sequence > t.Snapshot.Sequence:
		// Another dispatcher has gone on to a newer bundle: this one was the leader once and does not know better.
		return Decision{State: Removing, After: trust}
	case job.Deleting:
		return Decision{State: Removing, After: patience} // its end is told by an event, unless a cache never saw it
	case job.Phase == Live:
		return decideLive(t, n, job, now)
	case job.Phase == Succeeded:
		return decideSucceeded(t, n, job, now)
	default:
		return decideFailed(t, n, job, now)
	}
}

// deliver starts a delivery, unless the node is away: its Job would only run into its deadline.
func deliver(n Node, action Action, cause Cause, attempt int) Decision {
	if !n.Ready {
		return Decision{State: NotReady}
	}
	return Decision{State: Queued, Action: action, Cause: cause, Paced: true, Attempt: attempt}
}

// decideLive withdraws a live Job that would write something else than what is wanted now, at once and whatever state its
// node is in: once a newer bundle is accepted, the older one must not be written any more.
func decideLive(t Target, n Node, job *Record, now time.Time) Decision {
	if cause := outdated(t, n, job); cause != "" {
		return Decision{State: Removing, Action: Remove, Cause: cause}
	}
	if !n.Ready {
		return Decision{State: NotReady}
	}
	if left := patience - now.Sub(job.Created); left > 0 {
		return Decision{State: InFlight, After: left}
	}
	return Decision{State: Slow}
}

// outdated says why a Job that has not succeeded is not the one that would be made now; empty when it is.
func outdated(t Target, n Node, job *Record) Cause {
	if cause := superseded(t, n, job); cause != "" {
		return cause
	}
	if job.Template != t.Template {
		return CauseSettings
	}
	return ""
}

// superseded says why what a Job has done, or is doing, does not count any more; empty when it does. The image and other
// settings do not matter here: a new version of courier is no reason to deliver again.
func superseded(t Target, n Node, job *Record) Cause {
	if job.NodeUID != n.UID {
		return CauseNode
	}
	if job.Hash != t.Snapshot.Hash || job.Destination != t.Settings.Destination {
		return CauseBundle
	}
	return ""
}

func decideSucceeded(t Target, n Node, job *Record, now time.Time) Decision {
	if cause := superseded(t, n, job); cause != "" {
		return deliver(n, Replace, cause, 1)
	}
	return lookAgain(t, n, job, Delivered, now)
}

// lookAgain keeps an outcome until the node boots or its time has come.
func lookAgain(t Target, n Node, job *Record, outcome State, now time.Time) Decision {
	if rebooted(n, job) {
		return deliver(n, Replace, CauseReboot, 1)
	}
	left := lookAfter(n.Name, t.Settings.LookAgain.Duration) - now.Sub(job.Finished)
	if left > 0 {
		return Decision{State: outcome, After: left}
	}
	if !n.Ready {
		return Decision{State: outcome} // it is looked at when it is back
	}
	return deliver(n, Replace, CauseLook, 1)
}

// rebooted compares boot ids. A node that reports none is taken not to have rebooted.
func rebooted(n Node, job *Record) bool {
	return n.BootID != "" && job.BootID != "" && n.BootID != job.BootID
}

func decideFailed(t Target, n Node, job *Record, now time.Time) Decision {
	// When the landing reported its exit code, its pod has ended. After a deadline it may still be ending.
	action := Remove
	if job.Exit != nil {
		action = Replace
	}
	cause := superseded(t, n, job)
	if state := observed(job); cause == "" && state != "" {
		if t.Settings.Mode == Observe {
			return lookAgain(t, n, job, state, now)
		}
		return deliver(n, action, CauseEnforce, 1)
	}
	if cause == "" {
		cause = outdated(t, n, job)
	}
	if cause == "" && rebooted(n, job) {
		cause = CauseReboot
	}
	if cause != "" {
		return deliver(n, action, cause, 1)
	}
	if left := retryAfter(n.Name, job.Attempt, job.Exit) - now.Sub(job.Finished); left > 0 {
		return Decision{State: Backoff, After: left}
	}
	return deliver(n, action, CauseRetry, job.Attempt+1)
}

// observed is what a Job in observe mode found wrong; empty when the Job really failed.
func observed(job *Record) State {
	if job.Mode != Observe || job.Exit == nil {
		return ""
	}
	switch *job.Exit {
	case node.ExitWouldChange:
		return WouldChange
	case node.ExitWouldRemove:
		return WouldRemove
	default:
		return ""
	}
}
