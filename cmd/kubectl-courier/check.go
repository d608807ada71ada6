package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/webhook"
)

// Operations that check judges.
const (
	operationCreate = "CREATE"
	operationUpdate = "UPDATE"
	operationDelete = "DELETE"
)

// checkOptions are the flags of check.
type checkOptions struct {
	cli
	old       string
	operation string
	at        string
	allowDrop []string
	key       string
}

// newCheckCommand returns the command that gives the gate's verdict without a gate.
func newCheckCommand(c cli) *cobra.Command {
	o := checkOptions{cli: c}
	output := newOutputFlags()
	cmd := &cobra.Command{
		Use:   "check [--old SOURCE] NEW",
		Short: "Say what the gate would say about a CA bundle, and show what is in it",
		Long: `Say what the gate would say about a CA bundle, or about the change from one to another, and show what is in it.

A source is a file, - for standard input, or configmap/NAME for one in the cluster (with --namespace). A file holds PEM, or
a ConfigMap in YAML or JSON; of a ConfigMap, the annotation ` + bundle.AllowanceAnnotation + ` and the field immutable
count too. Without --old the bundle is judged as a new one.

Exit status: 0 when the bundle is allowed, 1 when it is denied, 2 when the command is used wrongly.`,
		Example: `  kubectl courier check --old old.pem new.pem
  kubectl courier check configmap/kube-apiserver-to-kubelet-client-ca -n openshift-kube-apiserver-operator
  kubectl create configmap ca --from-file=ca-bundle.crt=new.pem --dry-run=client -o yaml | kubectl courier check -
  kubectl courier check --old configmap/ca --allow-drop 97:DA:35:0C:… new.pem`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			checked, err := o.run(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := output.write(c.streams.Out, checked.report(c.colours(output))); err != nil {
				return err
			}
			if !checked.verdict.Allowed {
				return errAnswerIsNo
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.old, "old", "", "source of the bundle that NEW would replace")
	flags.StringVar(&o.operation, "operation", "", "CREATE, UPDATE or DELETE (default: UPDATE with --old, CREATE without)")
	flags.StringVar(&o.at, "at", "", "time to judge at, such as 2026-12-01T12:00:00Z (default: now)")
	flags.StringArrayVar(&o.allowDrop, "allow-drop", nil,
		"SHA-256 fingerprint of a valid CA that may go, as break-glass would allow it (repeatable)")
	flags.StringVar(&o.key, "key", "", "key of the bundle in a ConfigMap (default: its only key, or ca-bundle.crt)")
	output.print.AddFlags(cmd)
	return cmd
}

// run reads the sources and judges them.
func (o *checkOptions) run(ctx context.Context, args []string) (*checked, error) {
	at, err := o.time()
	if err != nil {
		return nil, err
	}
	allow, err := bundle.ParseAllowances(strings.Join(o.allowDrop, ","))
	if err != nil {
		return nil, usageError("--allow-drop: "+strings.ReplaceAll(err.Error(), "\n", "; "),
			"openssl x509 -noout -fingerprint -sha256 prints one")
	}
	operation, err := o.whichOperation(args)
	if err != nil {
		return nil, err
	}
	if operation == operationDelete {
		return &checked{verdict: bundle.ReviewDeletion(), at: at}, nil
	}
	if o.old == stdin && args[0] == stdin {
		return nil, usageError("standard input cannot be both bundles", "put one of them into a file")
	}
	changed, err := o.read(ctx, args[0])
	if err != nil {
		return nil, err
	}
	var old *source
	if operation == operationUpdate {
		if old, err = o.read(ctx, o.old); err != nil {
			return nil, err
		}
	}
	return judge(old, changed, at, allow)
}

// time is the value of --at.
func (o *checkOptions) time() (time.Time, error) {
	if o.at == "" {
		return time.Now(), nil
	}
	at, err := time.Parse(time.RFC3339, o.at)
	if err != nil {
		return at, usageError(fmt.Sprintf("--at: %q is not a time", o.at), "write it like 2026-12-01T12:00:00Z")
	}
	return at, nil
}

// whichOperation is the value of --operation, or what the arguments imply.
func (o *checkOptions) whichOperation(args []string) (string, error) {
	operation := strings.ToUpper(o.operation)
	switch {
	case operation == "" && o.old != "":
		operation = operationUpdate
	case operation == "":
		operation = operationCreate
	case !slices.Contains([]string{operationCreate, operationUpdate, operationDelete}, operation):
		return "", usageError(fmt.Sprintf("unknown operation %q", o.operation), "use CREATE, UPDATE or DELETE")
	case operation == operationUpdate && o.old == "":
		return "", usageError("an UPDATE has an old bundle too", "name it with --old")
	}
	if len(args) > 1 || len(args) == 0 && operation != operationDelete {
		return "", usageError(fmt.Sprintf("one bundle is needed, and there are %d", len(args)),
			"kubectl courier check --old OLD NEW, or kubectl courier check NEW")
	}
	return operation, nil
}

// judge asks the gate. Where the new bundle comes in a ConfigMap, the gate at admission is asked, which looks at the rest
// of the object too.
func judge(old, changed *source, at time.Time, allow bundle.Allowances) (*checked, error) {
	c := &checked{at: at}
	c.after, _ = bundle.Parse(changed.text)
	var before []byte
	if old != nil {
		before = append([]byte{}, old.text...)
		c.before, _ = bundle.Parse(before)
	}
	if changed.object == nil {
		c.verdict = bundle.Review(before, changed.text, at, allow)
	} else {
		var previous *corev1.ConfigMap
		if old != nil {
			previous = old.asObject(changed.key)
		}
		c.verdict = webhook.Judge(changed.key, previous, changed.allowing(allow), at)
	}
	if unknown := allow.Unknown(before, changed.text); c.verdict.Allowed && len(unknown) > 0 {
		return nil, usageError(fmt.Sprintf("--allow-drop: neither bundle has a certificate with the fingerprint %s", unknown[0]),
			"-o wide shows the fingerprints of a bundle")
	}
	return c, nil
}
