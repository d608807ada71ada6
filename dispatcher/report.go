package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
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
	// ReasonDelivered says on a node that it holds the bundle, and on the guarded ConfigMap that the first one does.
	ReasonDelivered = "Delivered"
	// ReasonFailed says on a node that its Job failed, and on the guarded ConfigMap that the first one of a rollout did.
	ReasonFailed = "DeliveryFailed"
	// ReasonBlocked says on a node that no Job can be made for it.
	ReasonBlocked = "DeliveryBlocked"
)

// reportingController is the name that the events carry.
const reportingController = "kubelet-ca-courier/courier"

// Nodes get events of their own, but no more than so many in so long a time. The rest are in the count that ends the
// rollout, and in what kubectl courier status shows.
const (
	nodesTold   = 10
	nodesToldIn = time.Hour
)

// Report tells people: by events, which are few however many nodes there are, and by metrics. Whatever it is told has
// happened already.
//
// Events are written one by one. The recorder of client-go would merge those that differ in nothing but their text, and
// lose some of a large rollout to its spam filter.
type Report struct {
	client   client.Client
	clock    clock.PassiveClock
	metrics  *Metrics
	instance string

	serial   atomic.Int64
	mu       sync.Mutex
	held     string
	fault    string
	delivery *corev1.ObjectReference
	// told counts the events about nodes since.
	told  int
	since time.Time
}

// NewReport returns a report of the given instance, as a rule the pod's name.
func NewReport(c client.Client, now clock.PassiveClock, metrics *Metrics, instance string) *Report {
	return &Report{client: c, clock: now, metrics: metrics, instance: instance}
}

// event writes an event. One that cannot be written is only logged: it must not hold up a delivery.
func (r *Report) event(ctx context.Context, about *corev1.ObjectReference, kind, reason, note string) {
	now := r.clock.Now()
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	err := r.client.Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x.%x", about.Name, now.UnixNano(), r.serial.Add(1))},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: reportingController,
		ReportingInstance:   r.instance,
		Action:              "Deliver",
		Reason:              reason,
		Regarding:           *about,
		Type:                kind,
		Note:                clip(note),
	})
	if err != nil {
		log.FromContext(ctx).Info("event not written", "reason", reason, "note", note, "cause", err.Error())
	}
}

// config tells about a fault of the configuration, once.
func (r *Report) config(ctx context.Context, key client.ObjectKey, uid types.UID, fault error) {
	r.metrics.configFault(fault)
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	if !r.changed(&r.fault, text) || text == "" {
		return
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: key.Namespace, Name: key.Name, UID: uid}
	r.event(ctx, about, corev1.EventTypeWarning, ReasonConfig, text+"; the last good configuration stays in force")
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
func (r *Report) accepted(ctx context.Context, guarded *corev1.ObjectReference, resolution Resolution) {
	next := resolution.Next
	if resolution.Current != nil && resolution.Current.Hash == next.Hash {
		return // only the record of who contributed what
	}
	r.event(ctx, guarded, corev1.EventTypeNormal, ReasonAccepted, "the bundle is stored for delivery as "+next.Name)
	for _, warning := range resolution.Warnings {
		if warning.Code == bundle.AllowedDrop {
			r.metrics.breakGlass.Inc()
			r.event(ctx, guarded, corev1.EventTypeWarning, ReasonAllowedDrop, warning.Message)
		}
	}
}

// holds tells what is held, once for every change of it.
func (r *Report) holds(ctx context.Context, guarded *corev1.ObjectReference, holds []Hold) {
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
		r.event(ctx, guarded, corev1.EventTypeNormal, ReasonResumed, "nothing is held any more")
	default:
		r.event(ctx, guarded, corev1.EventTypeWarning, ReasonHeld, "nodes keep what they have: "+text)
	}
}

// concerns says what events about deliveries are attached to from now on.
func (r *Report) concerns(guarded *corev1.ObjectReference) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delivery = guarded
}

// begun tells that a round began, if there is anything for it to do.
func (r *Report) begun(ctx context.Context, guarded *corev1.ObjectReference, t Target, counts map[State]int) {
	r.metrics.delivering(t.Snapshot, t.Settings.Guarded)
	active := 0
	for state, count := range counts {
		if state.Active() {
			active += count
		}
	}
	if active == 0 {
		return
	}
	r.event(ctx, guarded, corev1.EventTypeNormal, ReasonStarted, fmt.Sprintf("%s, mode %s: %d nodes to go, %d done, %d not ready",
		t.Snapshot.Name, t.Settings.Mode, active, done(counts), counts[NotReady]))
}

// finished tells how a round ended.
func (r *Report) finished(ctx context.Context, t Target, counts map[State]int) {
	kind := corev1.EventTypeNormal
	if counts[Backoff]+counts[Blocked] > 0 {
		kind = corev1.EventTypeWarning
	}
	note := fmt.Sprintf("%s, mode %s: %d nodes done", t.Snapshot.Name, t.Settings.Mode, done(counts))
	for _, state := range []State{WouldChange, WouldRemove, Backoff, Blocked, NotReady} {
		if counts[state] > 0 {
			note += fmt.Sprintf(", %d %s", counts[state], state)
		}
	}
	r.event(ctx, r.guarded(), kind, ReasonFinished, note)
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

// node tells about a node, on the node itself as long as there are few of them, and for the first one of a rollout on the
// guarded ConfigMap too.
func (r *Report) node(ctx context.Context, n Node, first bool, kind, reason, text string) {
	if r.spend() {
		about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
		r.event(ctx, about, kind, reason, text)
	}
	if first {
		r.event(ctx, r.guarded(), kind, reason, "the first node is "+n.Name+": "+text)
	}
}

// spend reports whether one more event about a node is within bounds.
func (r *Report) spend() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.clock.Now(); now.Sub(r.since) >= nodesToldIn {
		r.told, r.since = 0, now
	}
	r.told++
	return r.told <= nodesTold
}

// tell turns the change of a node's state into events and metrics.
func (d *Delivery) tell(ctx context.Context, r *round, n Node, record *Record, before State, o outcome) {
	ended := before.Active() && record != nil && record.Phase != Live
	switch {
	case ended && o.state.Done():
		d.Report.metrics.ended(record)
		if record.brought() {
			d.Report.metrics.delivered(r.Snapshot, n, record)
			d.Report.node(ctx, n, !r.delivered.Swap(true), corev1.EventTypeNormal, ReasonDelivered, r.Snapshot.Name+" is delivered")
		}
	case ended && o.state == Backoff:
		d.Report.metrics.ended(record)
		log.FromContext(ctx).Info("delivery failed", "node", n.Name, "attempt", record.Attempt, "failure", record.Failure())
		if record.Attempt <= 1 { // the later ones are in the Job, and in what kubectl courier status shows
			d.Report.node(ctx, n, !r.failed.Swap(true), corev1.EventTypeWarning, ReasonFailed, record.Failure())
		}
	case o.state == Blocked && (o.times == 1 || o.refusal == nil && before != Blocked):
		reason := o.refusal
		if reason == nil {
			reason = errors.New("something else has the name of its Job")
		}
		log.FromContext(ctx).Info("delivery blocked", "node", n.Name, "reason", reason.Error())
		d.Report.node(ctx, n, !r.failed.Swap(true), corev1.EventTypeWarning, ReasonBlocked, reason.Error())
	}
	if r.pace.Active() == 0 && !r.finished.Swap(true) {
		d.Report.finished(ctx, r.Target, d.Counts())
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
