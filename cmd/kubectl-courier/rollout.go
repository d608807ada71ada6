package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
)

// rollout is what plan and status tell: the dispatcher's own decisions, in the form that scripts read.
type rollout struct {
	Mode        dispatcher.Mode `json:"mode"`
	Destination string          `json:"destination"`
	// Bundle is what nodes get; nil while nothing was ever accepted.
	Bundle    *bundleEntry             `json:"bundle,omitempty"`
	Held      []holdEntry              `json:"held"`
	Warnings  []bundle.Finding         `json:"warnings,omitempty"`
	Total     int                      `json:"total"`
	Delivered int                      `json:"delivered"`
	Counts    map[dispatcher.State]int `json:"counts"`
	Nodes     []nodeEntry              `json:"nodes"`
}

// bundleEntry describes the bundle that nodes get.
type bundleEntry struct {
	Snapshot     string      `json:"snapshot"`
	SHA256       string      `json:"sha256"`
	Certificates int         `json:"certificates"`
	Accepted     metav1.Time `json:"accepted"`
	// Stored is false while the dispatcher has yet to write the snapshot.
	Stored bool `json:"stored"`
}

// holdEntry is a reason for which something is not delivered.
type holdEntry struct {
	Source  string `json:"source,omitempty"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// nodeEntry is where one node stands.
type nodeEntry struct {
	Node    string            `json:"node"`
	Ready   bool              `json:"ready"`
	State   dispatcher.State  `json:"state"`
	Action  dispatcher.Action `json:"action,omitempty"`
	Cause   dispatcher.Cause  `json:"cause,omitempty"`
	Job     string            `json:"job,omitempty"`
	Attempt int               `json:"attempt,omitempty"`
	// Since is when the last Job ended, or began if it has not ended.
	Since *metav1.Time `json:"since,omitempty"`
	// Detail says how the last Job failed, or why there can be none.
	Detail string `json:"detail,omitempty"`
	// Next is when the dispatcher looks at the node again if nothing changes.
	Next *metav1.Time `json:"next,omitempty"`
}

// reader returns a client for the typed objects that the dispatcher reads.
func (c cli) reader() (client.Client, error) {
	config, err := c.restConfig()
	if err != nil {
		return nil, err
	}
	reader, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return reader, nil
}

// loadRollout asks the dispatcher's own functions where everything stands.
func loadRollout(ctx context.Context, reader client.Reader, now time.Time) (*rollout, error) {
	plan, err := dispatcher.Load(ctx, reader, dispatcher.DefaultWhere(), now)
	if apierrors.IsNotFound(err) {
		return nil, withHint(err, "is kubelet-ca-courier installed? docs/install says how")
	}
	if err != nil {
		return nil, err
	}
	r := newRollout(plan, now)
	return r, r.findRefusals(ctx, reader)
}

// newRollout puts a plan into the form that scripts read.
func newRollout(plan dispatcher.Plan, now time.Time) *rollout {
	r := &rollout{
		Mode:        plan.Config.Mode,
		Destination: plan.Config.Destination,
		Held:        []holdEntry{},
		Warnings:    plan.Resolution.Warnings,
		Total:       len(plan.Nodes),
		Counts:      map[dispatcher.State]int{},
		Nodes:       []nodeEntry{},
	}
	for _, hold := range plan.Resolution.Holds {
		entry := holdEntry{Code: string(hold.Code), Message: hold.Message}
		if hold.Source != (dispatcher.Ref{}) {
			entry.Source = hold.Source.String()
		}
		r.Held = append(r.Held, entry)
	}
	for _, fault := range plan.Faults {
		r.Held = append(r.Held, holdEntry{Code: "BadSnapshot", Message: fault.Error()})
	}
	if plan.Target != nil {
		s := plan.Target.Snapshot
		parsed, _ := bundle.Parse(s.PEM) // it was accepted, so there are no findings
		r.Bundle = &bundleEntry{
			Snapshot: s.Name, SHA256: s.Hash, Certificates: len(parsed.Certificates),
			Accepted: metav1.NewTime(s.Accepted), Stored: plan.Resolution.Next == nil,
		}
	}
	for _, status := range plan.Nodes {
		r.Nodes = append(r.Nodes, newNodeEntry(status, now))
		r.Counts[status.Decision.State]++
	}
	r.Delivered = r.Counts[dispatcher.Delivered]
	r.sort()
	return r
}

// sort puts the nodes that need an admin first.
func (r *rollout) sort() {
	slices.SortFunc(r.Nodes, func(a, b nodeEntry) int {
		if d := urgency(a.State) - urgency(b.State); d != 0 {
			return d
		}
		return strings.Compare(a.Node, b.Node)
	})
}

// newNodeEntry describes one node.
func newNodeEntry(status dispatcher.NodeStatus, now time.Time) nodeEntry {
	d := status.Decision
	e := nodeEntry{Node: status.Node.Name, Ready: status.Node.Ready, State: d.State, Action: d.Action, Cause: d.Cause, Attempt: d.Attempt}
	if d.After > 0 {
		next := metav1.NewTime(now.Add(d.After))
		e.Next = &next
	}
	if status.Record == nil {
		return e
	}
	e.Job = status.Record.Name
	since := metav1.NewTime(status.Record.Created)
	if !status.Record.Finished.IsZero() {
		since = metav1.NewTime(status.Record.Finished)
	}
	e.Since = &since
	if e.Attempt == 0 {
		e.Attempt = status.Record.Attempt
	}
	if status.Record.Phase == dispatcher.Failed {
		e.Detail = status.Record.Failure()
	} else {
		e.Detail = status.Record.LastFailure
	}
	return e
}

// urgency orders states: first what fails, last what is done.
func urgency(s dispatcher.State) int {
	switch s {
	case dispatcher.Blocked, dispatcher.Backoff:
		return 0
	case dispatcher.WouldRemove:
		return 1
	case dispatcher.WouldChange:
		return 2
	case dispatcher.Slow, dispatcher.NotReady:
		return 3
	case dispatcher.Delivered:
		return 5
	default:
		return 4
	}
}

// bundleLine says in a line what nodes get.
func (r *rollout) bundleLine(now time.Time) string {
	if r.Bundle == nil {
		return "no bundle was accepted yet"
	}
	line := fmt.Sprintf("bundle %s: %s", r.Bundle.Snapshot, plural(r.Bundle.Certificates, "certificate"))
	if !r.Bundle.Stored {
		return line + ", about to be stored"
	}
	return line + ", accepted " + duration.HumanDuration(now.Sub(r.Bundle.Accepted.Time)) + " ago"
}

// heldLines say what is held.
func (r *rollout) heldLines(c colours) []string {
	var lines []string
	for _, h := range r.Held {
		line := c.bad("held: "+h.Code) + ": " + h.Message
		if h.Source != "" {
			line = c.bad("held: "+h.Code) + ": " + h.Source + ": " + h.Message
		}
		lines = append(lines, line)
	}
	return lines
}

// countsLine lists the states other than Delivered with their numbers, the urgent ones first.
func (r *rollout) countsLine() string {
	states := make([]dispatcher.State, 0, len(r.Counts))
	for s := range r.Counts {
		if s != dispatcher.Delivered {
			states = append(states, s)
		}
	}
	slices.SortFunc(states, func(a, b dispatcher.State) int {
		if d := urgency(a) - urgency(b); d != 0 {
			return d
		}
		return strings.Compare(string(a), string(b))
	})
	parts := make([]string, 0, len(states))
	for _, s := range states {
		parts = append(parts, fmt.Sprintf("%d %s", r.Counts[s], s))
	}
	return strings.Join(parts, ", ")
}

// plural writes a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// age is a time as kubectl shows it.
func age(at *metav1.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return duration.HumanDuration(now.Sub(at.Time))
}

// within is the time until something happens, as kubectl would show it.
func within(at *metav1.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return duration.HumanDuration(at.Sub(now))
}
