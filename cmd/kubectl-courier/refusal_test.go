package main

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"kubelet-ca-courier/dispatcher"
)

// told is an event about a node, so long ago.
func told(node, reason, note string, ago time.Duration) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: node + "." + ago.String()},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node},
		Reason:         reason, Message: note, EventTime: metav1.NewMicroTime(now.Add(-ago)),
	}
}

// eventsOf is a reader of events, or one that fails.
func eventsOf(failure error, events ...client.Object) client.Client {
	return fake.NewClientBuilder().WithObjects(events...).
		WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*corev1.Event).Reason} }).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if failure != nil {
					return failure
				}
				return c.List(ctx, list, opts...)
			},
		}).Build()
}

func TestANodeWhoseJobIsRefusedIsBlockedAndSaysWhy(t *testing.T) {
	refused := []client.Object{
		told("win-b", dispatcher.ReasonBlocked, "an older refusal", time.Hour),
		told("win-b", dispatcher.ReasonBlocked, "exceeded quota", time.Minute),
		told("win-b", dispatcher.ReasonFailed, "exit code 7", time.Second),
	}
	forbidden := apierrors.NewForbidden(corev1.Resource("events"), "", nil)
	for name, test := range map[string]struct {
		first  dispatcher.State
		job    bool
		reader client.Client
		state  dispatcher.State
		detail string
	}{
		"its Job was refused":               {dispatcher.Delivered, false, eventsOf(nil, refused...), dispatcher.Blocked, "exceeded quota"},
		"it waits for another node":         {dispatcher.InFlight, false, eventsOf(errors.New("nobody should ask")), dispatcher.Queued, ""},
		"it has a Job of an older bundle":   {dispatcher.Delivered, true, eventsOf(errors.New("nobody should ask")), dispatcher.Queued, ""},
		"nothing was told about it":         {dispatcher.Delivered, false, eventsOf(nil, refused[2]), dispatcher.Queued, ""},
		"the admin may not read the events": {dispatcher.Delivered, false, eventsOf(forbidden), dispatcher.Queued, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := planOf(test.first, dispatcher.Queued)
			if !test.job {
				p.Nodes[1].Record = nil
			}
			r := newRollout(p, now)
			if err := r.findRefusals(t.Context(), test.reader); err != nil {
				t.Fatal(err)
			}
			for _, n := range r.Nodes {
				if n.Node == "win-b" && (n.State != test.state || n.Detail != test.detail) {
					t.Errorf("it is %s, %q; want %s, %q", n.State, n.Detail, test.state, test.detail)
				}
			}
			if r.Counts[test.state] != 1 || test.state == dispatcher.Blocked && r.Nodes[0].Node != "win-b" {
				t.Errorf("counted %v, in the order %+v", r.Counts, r.Nodes)
			}
		})
	}
	r := newRollout(planOf(dispatcher.Queued), now)
	r.Nodes[0].Job = ""
	if err := r.findRefusals(t.Context(), eventsOf(errors.New("away"))); err == nil {
		t.Error("an API server that is away is not told")
	}
}
