package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

// findRefusals looks for the reason where nodes without a Job wait for their turn and no other node is at work that they could
// be waiting for: the API server has then refused their Jobs. Only the dispatcher itself has seen that, and an event on the node
// is what it left. Whoever may not read events sees such a node as Queued.
func (r *rollout) findRefusals(ctx context.Context, reader client.Reader) error {
	if r.Counts[dispatcher.InFlight] > 0 || !r.anyWithoutJob() {
		return nil
	}
	events := &corev1.EventList{}
	err := reader.List(ctx, events, client.InNamespace(metav1.NamespaceDefault), client.MatchingFields{"reason": dispatcher.ReasonBlocked})
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for refusals among the events: %w", err)
	}
	newest := map[string]*corev1.Event{}
	for i := range events.Items {
		e := &events.Items[i]
		if known := newest[e.InvolvedObject.Name]; known == nil || e.EventTime.After(known.EventTime.Time) {
			newest[e.InvolvedObject.Name] = e
		}
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if e := newest[n.Node]; e != nil && n.waitsWithoutJob() {
			r.Counts[n.State]--
			n.State, n.Detail = dispatcher.Blocked, e.Message
			r.Counts[n.State]++
		}
	}
	if r.Counts[dispatcher.Queued] == 0 {
		delete(r.Counts, dispatcher.Queued)
	}
	r.sort()
	return nil
}

// anyWithoutJob reports whether a node waits that has no Job.
func (r *rollout) anyWithoutJob() bool {
	for i := range r.Nodes {
		if r.Nodes[i].waitsWithoutJob() {
			return true
		}
	}
	return false
}

func (n *nodeEntry) waitsWithoutJob() bool { return n.State == dispatcher.Queued && n.Job == "" }
