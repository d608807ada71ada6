package node

import (
	"context"
	"errors"
	"maps"
	"time"
)

// Confirmation is what the kubelet's own port says about the landing. The kubelet advertises the subject names of its
// CAs to every client, before any credential is shown; from Kubernetes 1.36 on it refreshes that list every minute
// (feature gate ReloadKubeletClientCAFile), before that never. Names are all there is: of keys nothing is known.
type Confirmation string

// Confirmations, of which none says more than is known.
const (
	// Confirmed says that the kubelet advertised other names before and advertises exactly the file's names now.
	Confirmed Confirmation = "confirmed"
	// CannotTell says that the names show nothing, or that the kubelet shows none.
	CannotTell Confirmation = "cannot tell"
	// NotYet says that the kubelet still advertises other names when the time is up.
	NotYet Confirmation = "not yet"
)

const (
	askTimeout  = 5 * time.Second
	askInterval = 5 * time.Second // each question leaves a line in the kubelet's log
)

// names is a set of DER-encoded subject names.
type names map[string]struct{}

// advertised is what the kubelet said to one question.
type advertised struct {
	names names
	err   error
}

// ask asks the kubelet once.
func (l *landing) ask(ctx context.Context) advertised {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	subjects, err := l.Ask(ctx, l.task.Confirm)
	set := names{}
	for _, subject := range subjects {
		set[string(subject)] = struct{}{}
	}
	return advertised{names: set, err: err}
}

// advertisedBefore asks before anything is written, so that a change can be told from a coincidence.
func (l *landing) advertisedBefore(ctx context.Context) advertised {
	if !l.task.Confirm.IsValid() {
		return advertised{}
	}
	return l.ask(ctx)
}

// confirm asks the kubelet until it advertises the file's names or the time is up.
func (l *landing) confirm(ctx context.Context, before advertised) *failure {
	if !l.task.Confirm.IsValid() {
		return nil
	}
	want := names{}
	for _, certificate := range l.bundle.Certificates {
		want[string(certificate.X509.RawSubject)] = struct{}{}
	}
	if before.err == nil && maps.Equal(before.names, want) {
		return l.cannotTell("the kubelet advertised the same names before: a new key under an old name does not show")
	}
	deadline := l.Now().Add(l.task.ConfirmTimeout)
	for {
		now := l.ask(ctx)
		switch {
		case errors.Is(now.err, errNoList):
			return l.cannotTell(now.err.Error())
		case now.err == nil && maps.Equal(now.names, want):
			if before.err != nil {
				return l.cannotTell("the kubelet advertises the right names, and it is not known whether it did before")
			}
			l.result.Confirmation = Confirmed
			return nil
		}
		if !l.Now().Add(askInterval).Before(deadline) || l.Sleep(ctx, askInterval) != nil {
			return l.notConfirmed(now)
		}
	}
}

func (l *landing) notConfirmed(last advertised) *failure {
	if last.err != nil {
		return l.cannotTell("the kubelet does not answer: " + last.err.Error())
	}
	l.result.Confirmation = NotYet
	return fail(ExitNotConfirmed, errors.New("the kubelet still advertises other CAs"),
		"kubelets before 1.36 keep the advertised list until they restart, whatever they trust")
}

func (l *landing) cannotTell(why string) *failure {
	l.result.Confirmation, l.result.Detail = CannotTell, why
	return nil
}
