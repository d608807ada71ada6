package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"kubelet-ca-courier/bundle"
)

// Reasons of events.
const (
	// ReasonAccepted says on the guarded ConfigMap that a bundle passed the gate and was stored for delivery.
	ReasonAccepted = "BundleAccepted"
	// ReasonStarted says on the guarded ConfigMap that nodes are being delivered to.
	ReasonStarted = "DeliveryStarted"
	// ReasonFinished says on the guarded ConfigMap that no node is left that could be delivered to now.
	ReasonFinished = "DeliveryFinished"
	// ReasonHeld says on the guarded ConfigMap that something is not delivered, and why.
	ReasonHeld = "DeliveryHeld"
	// ReasonResumed says on the guarded ConfigMap that nothing is held any more.
	ReasonResumed = "DeliveryResumed"
	// ReasonAllowedDrop says on the guarded ConfigMap that the break-glass annotation was used.
	ReasonAllowedDrop = "ValidCADropped"
	// ReasonConfig says on the configuration that it cannot be used, and that the last good one stays.
	ReasonConfig = "ConfigurationRefused"
	// ReasonFailed says on a node that its Job failed, and on the guarded ConfigMap that the first one of a rollout did.
	ReasonFailed = "DeliveryFailed"
	// ReasonBlocked says on a node that no Job can be made for it.
	ReasonBlocked = "DeliveryBlocked"
)

// failuresTold is how many nodes of a rollout get an event of their own about a failure; the rest are in the count that
// ends the rollout.
const failuresTold = 10

// Report tells people: by events, which are few however many nodes there are, and by metrics. Whatever it is told has
// happened already.
type Report struct {
	recorder events.EventRecorder
	metrics  *Metrics

	mu       sync.Mutex
	held     string
	fault    string
	delivery *corev1.ObjectReference
	mode     Mode
}

// NewReport returns a report that records events and counts.
func NewReport(recorder events.EventRecorder, metrics *Metrics) *Report {
	return &Report{recorder: recorder, metrics: metrics}
}

func (r *Report) event(about *corev1.ObjectReference, kind, reason, action, format string, args ...any) {
	r.recorder.Eventf(about, nil, kind, reason, action, format, args...)
}

// config tells about a fault of the configuration, once.
func (r *Report) config(key client.ObjectKey, uid types.UID, fault error) {
	r.metrics.configFault(fault)
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	if !r.changed(&r.fault, text) || text == "" {
		return
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: key.Namespace, Name: key.Name, UID: uid}
	r.event(about, corev1.EventTypeWarning, ReasonConfig, "Configure", "%s; the last good configuration stays in force", text)
}

// changed stores a new value and reports whether it was one.
func (r *Report) changed(old *string, value string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *old == value {
		return false
	}
	*old = value
	return true
}

// accepted tells that a snapshot was written.
func (r *Report) accepted(guarded *corev1.ObjectReference, resolution Resolution) {
	next := resolution.Next
	if resolution.Current != nil && resolution.Current.Hash == next.Hash {
		return // only the record of who contributed what
	}
	r.event(guarded, corev1.EventTypeNormal, ReasonAccepted, "Deliver", "bundle %s is stored as %s",
		shortHash(next.Hash), next.Name)
	for _, warning := range resolution.Warnings {
		if warning.Code == bundle.AllowedDrop {
			r.metrics.breakGlass.Inc()
			r.event(guarded, corev1.EventTypeWarning, ReasonAllowedDrop, "Deliver", "%s", warning.Message)
		}
	}
}

// holds tells what is held, once for every change of it.
func (r *Report) holds(guarded *corev1.ObjectReference, holds []Hold) {
	r.metrics.setHolds(holds)
	lines := make([]string, 0, len(holds))
	for _, hold := range holds {
		lines = append(lines, hold.String())
	}
	slices.Sort(lines)
	text := strings.Join(lines, "; ")
	switch {
	case !r.changed(&r.held, text):
	case text == "":
		r.event(guarded, corev1.EventTypeNormal, ReasonResumed, "Deliver", "nothing is held any more")
	default:
		r.event(guarded, corev1.EventTypeWarning, ReasonHeld, "Deliver", "nodes keep what they have: %s", clip(text))
	}
}

// begun tells that a round began, if there is anything for it to do.
func (r *Report) begun(guarded *corev1.ObjectReference, t Target, counts map[State]int) {
	r.metrics.delivering(t.Snapshot)
	r.mu.Lock()
	r.delivery, r.mode = guarded, t.Settings.Mode
	r.mu.Unlock()
	active := 0
	for state, count := range counts {
		if state.Active() {
			active += count
		}
	}
	if active > 0 {
		r.event(guarded, corev1.EventTypeNormal, ReasonStarted, "Deliver", "bundle %s, mode %s: %d nodes to go, %d done, %d not ready",
			shortHash(t.Snapshot.Hash), t.Settings.Mode, active, done(counts), counts[NotReady])
	}
}

// finished tells how a round ended.
func (r *Report) finished(t Target, counts map[State]int) {
	kind := corev1.EventTypeNormal
	if counts[Backoff]+counts[Blocked] > 0 {
		kind = corev1.EventTypeWarning
	}
	note := fmt.Sprintf("bundle %s, mode %s: %d nodes done", shortHash(t.Snapshot.Hash), t.Settings.Mode, done(counts))
	for _, state := range []State{WouldChange, WouldRemove, Backoff, Blocked, NotReady} {
		if counts[state] > 0 {
			note += fmt.Sprintf(", %d %s", counts[state], state)
		}
	}
	r.event(r.guarded(), kind, ReasonFinished, "Deliver", "%s", note)
}

func (r *Report) guarded() *corev1.ObjectReference {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.delivery
}

func done(counts map[State]int) int {
	return counts[Delivered] + counts[WouldChange] + counts[WouldRemove]
}

// created counts a Job that was made.
func (r *Report) created(cause Cause) { r.metrics.created.WithLabelValues(string(cause)).Inc() }

// failed tells that a node's Job failed, unless many of the same rollout were told already.
func (r *Report) failed(n Node, nth int32, reason, text string) {
	if nth > failuresTold {
		return
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
	r.event(about, corev1.EventTypeWarning, reason, "Deliver", "%s", clip(text))
	if nth == 1 {
		r.event(r.guarded(), corev1.EventTypeWarning, reason, "Deliver", "first node to fail: %s: %s", n.Name, clip(text))
	}
}

// tell turns the change of a node's state into events and metrics.
func (d *Delivery) tell(ctx context.Context, r *round, n Node, record *Record, before State, o outcome) {
	ended := before.Active() && record != nil && record.Phase != Live
	switch {
	case ended && o.state.Done():
		d.Report.metrics.ended(record)
		d.Report.metrics.delivered(r.Snapshot, n, record)
	case ended && o.state == Backoff:
		d.Report.metrics.ended(record)
		log.FromContext(ctx).Info("delivery failed", "node", n.Name, "attempt", record.Attempt, "failure", record.Failure())
		d.Report.failed(n, r.failures.Add(1), ReasonFailed, record.Failure())
	case before != Blocked && o.state == Blocked:
		reason := o.refusal
		if reason == nil {
			reason = errors.New("something else has the name of its Job")
		}
		log.FromContext(ctx).Info("delivery blocked", "node", n.Name, "reason", reason.Error())
		d.Report.failed(n, r.failures.Add(1), ReasonBlocked, reason.Error())
	}
	if r.pace.Active() == 0 && !r.finished.Swap(true) {
		d.Report.finished(r.Target, d.Counts())
	}
}

// clip shortens a text to what an event may hold (1,024 bytes, k8s.io/kubernetes pkg/apis/core/validation/events.go).
func clip(text string) string {
	const limit = 900
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + " …"
}
