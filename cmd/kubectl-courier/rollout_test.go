package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/node"
)

// now is when the tests take place.
var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// planOf is a plan in which one node is in each of the states.
func planOf(states ...dispatcher.State) dispatcher.Plan {
	current := dispatcher.Snapshot{Name: "kubelet-ca-0", Hash: "00", Accepted: now.Add(-time.Hour)}
	p := dispatcher.Plan{
		Resolution: dispatcher.Resolution{Current: &current},
		Target:     &dispatcher.Target{Snapshot: current},
	}
	p.Config.Mode, p.Config.Destination = dispatcher.Enforce, `C:\k\kubelet-ca.crt`
	for i, state := range states {
		name := "win-" + string(rune('a'+i))
		status := dispatcher.NodeStatus{
			Node:     dispatcher.Node{Name: name, Ready: true},
			Record:   &dispatcher.Record{Name: name, Attempt: 1, Phase: dispatcher.Succeeded, Finished: now.Add(-time.Minute)},
			Decision: dispatcher.Decision{State: state},
		}
		if state == dispatcher.Backoff {
			exit := node.ExitDestinationBusy
			status.Record.Phase, status.Record.Exit = dispatcher.Failed, &exit
		}
		p.Nodes = append(p.Nodes, status)
	}
	return p
}

func TestStatusPutsWhatNeedsAnAdminFirst(t *testing.T) {
	r := newRollout(planOf(dispatcher.Delivered, dispatcher.Queued, dispatcher.NotReady, dispatcher.WouldRemove, dispatcher.Backoff, dispatcher.Delivered), now)
	var order []string
	for _, n := range r.Nodes {
		order = append(order, string(n.State))
	}
	if got, want := strings.Join(order, " "), "Failed WouldRemove NotReady Queued Delivered Delivered"; got != want {
		t.Errorf("the order is %s, want %s", got, want)
	}
	want := "2 of 6 nodes hold the bundle; 1 Failed, 1 WouldRemove, 1 NotReady, 1 Queued"
	if got := r.headline(colours{}); got != want {
		t.Errorf("the headline is %q, want %q", got, want)
	}
	if got := r.Nodes[0].Detail; got != "exit code 6: another process holds the destination open" {
		t.Errorf("the failure reads %q", got)
	}
}

func TestStatusIsOverWhenNothingIsLeftToWaitFor(t *testing.T) {
	for name, test := range map[string]struct {
		plan              dispatcher.Plan
		settled, complete bool
	}{
		"all nodes hold the bundle":  {planOf(dispatcher.Delivered, dispatcher.Delivered), true, true},
		"there is no Windows node":   {planOf(), true, true},
		"one is on its way":          {planOf(dispatcher.Delivered, dispatcher.InFlight), false, false},
		"one fails":                  {planOf(dispatcher.Delivered, dispatcher.Backoff), false, false},
		"one is away":                {planOf(dispatcher.Delivered, dispatcher.NotReady), true, false},
		"one would change":           {planOf(dispatcher.WouldChange), true, false},
		"nothing was accepted yet":   {dispatcher.Plan{}, false, false},
		"the snapshot is not stored": {unstored(planOf(dispatcher.Delivered)), false, true},
		"something is held":          {held(planOf(dispatcher.Delivered)), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRollout(test.plan, now)
			if r.settled() != test.settled || r.complete() != test.complete {
				t.Errorf("settled %t, complete %t; want %t, %t", r.settled(), r.complete(), test.settled, test.complete)
			}
		})
	}
}

// unstored is the plan with a snapshot that is yet to be written.
func unstored(p dispatcher.Plan) dispatcher.Plan {
	p.Resolution.Next = p.Resolution.Current
	return p
}

// held is the plan with something held.
func held(p dispatcher.Plan) dispatcher.Plan {
	p.Resolution.Holds = []dispatcher.Hold{{Source: dispatcher.Ref{Namespace: "n", Name: "c", Key: "k"}, Code: "NotPEM", Message: "no PEM marker"}}
	return p
}

func TestPlanSaysWhoGetsAJobAndWhy(t *testing.T) {
	p := held(planOf(dispatcher.Delivered, dispatcher.Queued))
	p.Nodes[1].Decision = dispatcher.Decision{State: dispatcher.Queued, Action: dispatcher.Replace, Cause: dispatcher.CauseBundle, Attempt: 1}
	var out bytes.Buffer
	if err := newOutputFlags().write(&out, newRollout(p, now).planReport(colours{}, now)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"bundle kubelet-ca-0: 0 certificates, accepted 60m ago\n",
		"mode enforce, destination C:\\k\\kubelet-ca.crt\n",
		"held: NotPEM: n/c/k: no PEM marker\n",
		"1 of 2 nodes get a Job\n",
		"win-b   Queued      Replace   bundle\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the plan lacks %q:\n%s", want, out.String())
		}
	}
}

func TestReportsOfManyNodesAreShort(t *testing.T) {
	states := make([]dispatcher.State, briefRows+1)
	for i := range states {
		states[i] = dispatcher.Delivered
	}
	states[7] = dispatcher.Blocked
	r := newRollout(planOf(states...), now).statusReport(colours{}, now)
	var brief, wide bytes.Buffer
	if err := writeTable(&brief, r, false); err != nil {
		t.Fatal(err)
	}
	if err := writeTable(&wide, r, true); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(brief.String(), "win-"); got != 1 {
		t.Errorf("the brief table shows %d nodes, want the one that is blocked:\n%s", got, brief.String())
	}
	if !strings.HasSuffix(brief.String(), "\n50 nodes with nothing to report are left out; -o wide shows them\n") {
		t.Errorf("the brief table does not say what it leaves out:\n%s", brief.String())
	}
	if got := strings.Count(wide.String(), "\nwin-"); got != len(states) {
		t.Errorf("the wide table shows %d nodes, want all %d", got, len(states))
	}
}

func TestScreenIsALineForEachChangeWhereThereIsNoTerminal(t *testing.T) {
	var out bytes.Buffer
	s := screen{w: &out}
	for _, p := range []dispatcher.Plan{planOf(dispatcher.Queued), planOf(dispatcher.Queued), planOf(dispatcher.Delivered)} {
		s.show(newRollout(p, now))
	}
	s.clear()
	if got, want := out.String(), "0 of 1 nodes hold the bundle; 1 Queued\n1 of 1 nodes hold the bundle\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestScreenDrawsABarInPlaceOnATerminal(t *testing.T) {
	var out bytes.Buffer
	s := screen{w: &out, terminal: true}
	s.show(newRollout(planOf(dispatcher.Delivered, dispatcher.Backoff), now))
	s.show(newRollout(planOf(dispatcher.Delivered, dispatcher.Delivered), now))
	for _, want := range []string{"[###############...............]  50%", "  win-b ", "\x1b[2A\x1b[J", "] 100%"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the screen lacks %q: %q", want, out.String())
		}
	}
}

func TestTimesReadAsKubectlShowsThem(t *testing.T) {
	at := metav1.NewTime(now.Add(-90 * time.Second))
	if got := age(&at, now); got != "90s" {
		t.Errorf("age is %q", got)
	}
	if got := age(nil, now) + within(nil, now); got != "" {
		t.Errorf("no time reads %q", got)
	}
}
