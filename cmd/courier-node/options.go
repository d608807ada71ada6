package main

import (
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"time"

	"kubelet-ca-courier/node"
)

const (
	// longestMessage is how much of a termination message the kubelet keeps (k8s.io/kubernetes
	// pkg/kubelet/container, MaxContainerTerminationMessageLength).
	longestMessage = 4096
	messageMode    = 0o600

	defaultPatience       = 30 * time.Second
	defaultConfirmTimeout = 2 * time.Minute
)

const usage = `courier-node lands a CA bundle in the place of the kubelet's client-CA file.

usage: courier-node --source FILE --sha256 HEX --destination FILE [flags]

  --source FILE               the bundle in the mounted ConfigMap volume
  --sha256 HEX                the SHA-256 that FILE must have
  --destination FILE          the kubelet's client-CA file, in full: C:\k\kubelet-ca.crt
  --check                     only say whether the destination is right; write nothing
  --dry-run                   say what would be written; write nothing
  --create-parent             create the destination's directory when it is missing
  --confirm IP:PORT           ask the kubelet there until it advertises the new CAs
  --confirm-timeout DURATION  how long to ask (2m0s)
  --patience DURATION         how long to wait for a file that is busy or a volume that is not there yet (30s)
  --termination-message FILE  also write the result there

exit codes: 0 right, 2 usage, 3 no source, 4 wrong source, 5 destination refused, 6 destination busy, 7 write failed,
8 changed by another, 9 not confirmed, 20 would change, 21 would change and lose a certificate, 1 anything else
`

// options is the command line.
type options struct {
	task     node.Task
	patience time.Duration
	message  string
}

// parse reads the command line.
func parse(arguments []string) (options, error) {
	var o options
	var check, dryRun bool
	flags := flag.NewFlagSet("courier-node", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.task.Source, "source", "", "")
	flags.StringVar(&o.task.SHA256, "sha256", "", "")
	flags.StringVar(&o.task.Destination, "destination", "", "")
	flags.BoolVar(&check, "check", false, "")
	flags.BoolVar(&dryRun, "dry-run", false, "")
	flags.BoolVar(&o.task.CreateParent, "create-parent", false, "")
	flags.Func("confirm", "", func(value string) (err error) {
		o.task.Confirm, err = netip.ParseAddrPort(value)
		return err
	})
	flags.DurationVar(&o.task.ConfirmTimeout, "confirm-timeout", defaultConfirmTimeout, "")
	flags.DurationVar(&o.patience, "patience", defaultPatience, "")
	flags.StringVar(&o.message, "termination-message", "", "")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case check && dryRun:
		return o, errors.New("--check and --dry-run exclude each other")
	case check:
		o.task.Mode = node.Check
	case dryRun:
		o.task.Mode = node.DryRun
	}
	return o, validate(o)
}

// validate refuses what cannot be right.
func validate(o options) error {
	for _, required := range []struct{ name, value string }{
		{"--source", o.task.Source}, {"--sha256", o.task.SHA256}, {"--destination", o.task.Destination},
	} {
		if required.value == "" {
			return fmt.Errorf("%s is missing", required.name)
		}
	}
	if sum, err := hex.DecodeString(o.task.SHA256); err != nil || len(sum) != 32 {
		return errors.New("--sha256 is not 64 hexadecimal digits")
	}
	if o.patience < 0 || o.task.ConfirmTimeout < 0 {
		return errors.New("a duration is negative")
	}
	return nil
}
