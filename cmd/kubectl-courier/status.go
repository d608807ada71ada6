package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/dispatcher"
)

// statusOptions are the flags of status.
type statusOptions struct {
	cli
	watch bool
	limit time.Duration
}

// newStatusCommand returns the command that says where every node stands.
func newStatusCommand(c cli) *cobra.Command {
	o := statusOptions{cli: c}
	output := newOutputFlags()
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show where every Windows node stands",
		Long: `Show where every Windows node stands, those that need you first.

With --watch it goes on until every Ready node holds the bundle, with a progress bar on a terminal and a line for each
change elsewhere.

Exit status: 0 when nothing is held and every node holds the bundle, 1 when not, 2 when it cannot be told.`,
		Example: "  kubectl courier status\n  kubectl courier status --watch --timeout 10m",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			if o.watch && !output.human() {
				return usageError("--watch is for people", "call status -o "+output.format()+" as often as you like instead")
			}
			r, err := o.run(cmd.Context())
			if err != nil {
				return err
			}
			if err := output.write(c.streams.Out, r.statusReport(c.colours(output), time.Now())); err != nil {
				return err
			}
			if !r.complete() {
				return errAnswerIsNo
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "go on until every Ready node holds the bundle")
	cmd.Flags().DurationVar(&o.limit, "timeout", 0, "end --watch after this time (default: never)")
	output.print.AddFlags(cmd)
	return cmd
}

// run reads where everything stands, with --watch once nothing is left to wait for.
func (o *statusOptions) run(ctx context.Context) (*rollout, error) {
	if !o.watch {
		reader, err := o.reader()
		if err != nil {
			return nil, err
		}
		return loadRollout(ctx, reader, time.Now())
	}
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	return o.follow(ctx)
}

// complete says whether there is nothing left to wish for.
func (r *rollout) complete() bool {
	return len(r.Held) == 0 && r.Bundle != nil && r.Delivered == r.Total
}

// settled says whether there is nothing left to wait for: a node that is away gets its delivery when it is back.
func (r *rollout) settled() bool {
	if r.Bundle == nil || !r.Bundle.Stored {
		return false
	}
	for state, n := range r.Counts {
		if n > 0 && !state.Done() && state != dispatcher.NotReady {
			return false
		}
	}
	return true
}

// headline is the answer in a line.
func (r *rollout) headline(c colours) string {
	line := fmt.Sprintf("%d of %d nodes hold the bundle", r.Delivered, r.Total)
	if rest := r.countsLine(); rest != "" {
		line += "; " + rest
	}
	switch {
	case r.Counts[dispatcher.Blocked]+r.Counts[dispatcher.Backoff] > 0:
		return c.bad(line)
	case r.Delivered < r.Total:
		return c.warn(line)
	default:
		return c.good(line)
	}
}

// statusReport tells where everything stands.
func (r *rollout) statusReport(c colours, now time.Time) report {
	out := report{
		kind:    "Status",
		data:    r,
		summary: []string{r.headline(c), r.bundleLine(now)},
		columns: []metav1.TableColumnDefinition{
			column("Node", false), column("State", false), column("Since", false), column("Attempt", false), column("Detail", false),
			column("Job", true), column("Ready", true), column("Next look", true),
		},
	}
	if r.Mode == dispatcher.Observe {
		out.summary = append(out.summary, c.warn("observe mode: nothing is written on any node"))
	}
	out.summary = append(out.summary, r.heldLines(c)...)
	for _, n := range r.Nodes {
		out.rows = append(out.rows, row{
			cells: []any{
				n.Node, string(n.State), age(n.Since, now), n.Attempt, n.Detail, n.Job, n.Ready, within(n.Next, now),
			},
			quiet: n.State == dispatcher.Delivered,
		})
	}
	return out
}

// noArguments refuses arguments with a hint.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return withHint(fmt.Errorf("unexpected argument %q", args[0]), "see "+cmd.CommandPath()+" --help")
}

// ended says whether an error only means that the time, or the person's patience, is up.
func ended(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
