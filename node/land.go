package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"kubelet-ca-courier/bundle"
)

// Mode says how far a landing goes.
type Mode int

// Modes of a landing.
const (
	Write  Mode = iota // land the file
	DryRun             // go as far as possible without writing, and say what would be written
	Check              // only say whether the file is right
)

// Task is one landing.
type Task struct {
	Source         string // the bundle's file in the mounted volume
	SHA256         string // of that file, in hexadecimal
	Destination    string // the kubelet's client-CA file
	Mode           Mode
	CreateParent   bool           // create the destination's directory when it is missing
	Confirm        netip.AddrPort // the kubelet's address; not asked when it is the zero value
	ConfirmTimeout time.Duration  // how long the kubelet may take
}

// Lander lands files. Everything that it needs of the world is injected.
type Lander struct {
	Disk       Disk
	Now        func() time.Time
	Sleep      func(context.Context, time.Duration) error
	Ask        func(ctx context.Context, address netip.AddrPort) ([][]byte, error) // the CA subjects that a kubelet advertises
	Random     func() uint32                                                       // tells temporary files apart
	MountPoint string                                                              // value of CONTAINER_SANDBOX_MOUNT_POINT
	Patience   time.Duration                                                       // how long a busy file or a missing source is waited for
}

// NewLander returns a lander for this machine.
func NewLander(mountPoint string, patience time.Duration) *Lander {
	return &Lander{
		Disk: OS{}, Now: time.Now, Sleep: Sleep, Ask: AskKubelet, Random: rand.Uint32,
		MountPoint: mountPoint, Patience: patience,
	}
}

// Land does the task. It returns a result in any case; the exit code in it is the verdict.
func (l *Lander) Land(ctx context.Context, task Task) Result {
	landing := &landing{Lander: l, task: task}
	landing.result.Destination = task.Destination
	landing.result.SHA256 = task.SHA256
	if failure := landing.run(ctx); failure != nil {
		landing.result.Code, landing.result.Error, landing.result.Hint = failure.code, failure.err.Error(), failure.hint
		if failure.code != ExitNotConfirmed { // there the file is right all the same
			landing.result.Outcome = Failed
		}
	}
	landing.result.Meaning = landing.result.Code.String()
	return landing.result
}

// landing is the state of one run.
type landing struct {
	*Lander
	task   Task
	result Result

	want     []byte // the bytes to land
	bundle   *bundle.Bundle
	held     *bundle.Bundle // what the destination holds now; nil when it is not there
	heldFine bool           // it is well-formed
}

func (l *landing) run(ctx context.Context) *failure {
	var failure *failure
	if l.want, l.bundle, failure = l.readSource(ctx, l.task); failure != nil {
		return failure
	}
	l.result.Certificates = len(l.bundle.Certificates)
	if failure := l.inspectDestination(); failure != nil {
		return failure
	}
	if failure := l.readDestination(ctx); failure != nil {
		return failure
	}
	right := l.heldFine && bundle.SameSet(l.held, l.bundle)
	if l.task.Mode != Write {
		l.report(right)
		return nil
	}
	before := l.advertisedBefore(ctx)
	if failure := l.write(ctx, right); failure != nil {
		return failure
	}
	if failure := l.notice(ctx); failure != nil {
		return failure
	}
	if failure := l.readBack(ctx, right); failure != nil {
		return failure
	}
	return l.confirm(ctx, before)
}

// readDestination reads what the destination holds and works out what a write would take away.
func (l *landing) readDestination(ctx context.Context) *failure {
	if l.result.Outcome == Created {
		return nil
	}
	var data []byte
	err := l.retry(ctx, passing, func() (err error) {
		data, err = l.Disk.ReadFile(l.task.Destination)
		return err
	})
	if err != nil {
		return diskFailure(fmt.Errorf("read the destination: %w", err))
	}
	held, findings := bundle.Parse(data)
	l.held, l.heldFine = held, len(findings) == 0
	for _, certificate := range bundle.Missing(held, l.bundle) {
		l.result.Removed = append(l.result.Removed, removal(certificate))
	}
	l.result.RemovedCount = len(l.result.Removed)
	return nil
}

func removal(certificate bundle.Certificate) Removal {
	return Removal{Subject: certificate.Subject(), SHA256: certificate.Fingerprint.String()}
}

// report is the answer of a dry run or check.
func (l *landing) report(right bool) {
	switch {
	case right:
		l.result.Outcome = Unchanged
	case l.result.RemovedCount > 0:
		l.result.Outcome, l.result.Code = WouldChange, ExitWouldRemove
	default:
		l.result.Outcome, l.result.Code = WouldChange, ExitWouldChange
	}
}

// write replaces the destination, unless that is right already, and clears away what an earlier landing left.
func (l *landing) write(ctx context.Context, right bool) *failure {
	if failure := l.removeLeftOvers(); failure != nil {
		return failure
	}
	if right {
		l.result.Outcome = Unchanged
		return nil
	}
	if l.result.Outcome != Created {
		l.result.Outcome = Replaced
	}
	return l.replace(ctx)
}

// notice makes the kubelet look at the file.
func (l *landing) notice(ctx context.Context) *failure {
	err := l.retry(ctx, passing, func() error { return l.Disk.Rewrite(l.task.Destination) })
	if err != nil {
		return diskFailure(fmt.Errorf("make the kubelet notice: %w", err))
	}
	l.result.Noticed = true
	return nil
}

// readBack makes sure that what was written is what is there: another writer may have come between.
func (l *landing) readBack(ctx context.Context, right bool) *failure {
	var data []byte
	err := l.retry(ctx, passing, func() (err error) {
		data, err = l.Disk.ReadFile(l.task.Destination)
		return err
	})
	if err != nil {
		return diskFailure(fmt.Errorf("read the destination back: %w", err))
	}
	if bytes.Equal(data, l.want) {
		return nil
	}
	if right {
		if parsed, findings := bundle.Parse(data); len(findings) == 0 && bundle.SameSet(parsed, l.bundle) {
			return nil
		}
	}
	return fail(ExitReadBackDiffers, errors.New("the destination changed right after it was written"),
		"another program writes this file: find it, or make it write the same certificates")
}
