package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/dispatcher"
)

// newPlanCommand returns the command that says what the dispatcher would do.
func newPlanCommand(c cli) *cobra.Command {
	output := newOutputFlags()
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what would be delivered where, and why",
		Long: `Show what would be delivered where, and why: the dispatcher's own decisions, made on what the cluster holds now.

Exit status: 0 when nothing is held, 1 when something a source says would not be delivered, 2 when it cannot be told.`,
		Example: "  kubectl courier plan\n  kubectl courier plan -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			reader, err := c.reader()
			if err != nil {
				return err
			}
			now := time.Now()
			r, err := loadRollout(cmd.Context(), reader, now)
			if err != nil {
				return err
			}
			if err := output.write(c.streams.Out, r.planReport(c.colours(output), now)); err != nil {
				return err
			}
			if len(r.Held) > 0 {
				return errAnswerIsNo
			}
			return nil
		},
	}
	output.print.AddFlags(cmd)
	return cmd
}

// planReport tells what happens next.
func (r *rollout) planReport(c colours, now time.Time) report {
	out := report{
		kind:    "Plan",
		data:    r,
		summary: []string{r.bundleLine(now), fmt.Sprintf("mode %s, destination %s", r.Mode, r.Destination)},
		columns: []metav1.TableColumnDefinition{
			column("Node", false), column("State", false), column("Action", false), column("Cause", false),
			column("Attempt", true), column("Next look", true),
		},
	}
	out.summary = append(out.summary, r.heldLines(c)...)
	for _, w := range r.Warnings {
		out.summary = append(out.summary, c.warn("warning: "+string(w.Code))+": "+w.Message)
	}
	writes := 0
	for _, n := range r.Nodes {
		if n.Action != dispatcher.Nothing {
			writes++
		}
		out.rows = append(out.rows, row{
			cells: []any{n.Node, string(n.State), string(n.Action), string(n.Cause), n.Attempt, within(n.Next, now)},
			quiet: n.Action == dispatcher.Nothing && n.State.Done(),
		})
	}
	if r.Bundle != nil {
		out.summary = append(out.summary, fmt.Sprintf("%d of %d nodes get a Job", writes, r.Total))
	}
	return out
}
