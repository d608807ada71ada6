package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Exit codes of every command.
const (
	exitYes   = 0
	exitNo    = 1
	exitFault = 2
)

// errAnswerIsNo ends a command whose answer, already printed, is no.
var errAnswerIsNo = errors.New("the answer is no")

// hinted is an error with advice for the person who gets it.
type hinted struct {
	error
	hint string
}

// Unwrap returns the error without the advice.
func (h hinted) Unwrap() error { return h.error }

// withHint adds advice to an error.
func withHint(err error, hint string) error { return hinted{error: err, hint: hint} }

// usageError says that the command was used wrongly, and how to use it.
func usageError(message, hint string) error { return withHint(errors.New(message), hint) }

// run executes the command line and returns the exit code.
func run(ctx context.Context, streams genericiooptions.IOStreams, args []string) int {
	root := newRootCommand(streams)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitYes
	case errors.Is(err, errAnswerIsNo):
		return exitNo
	}
	printError(streams, err)
	return exitFault
}

// printError prints one line, and advice where there is some.
func printError(streams genericiooptions.IOStreams, err error) {
	message := strings.TrimSpace(strings.ReplaceAll(err.Error(), "\n", "; "))
	_, _ = fmt.Fprintf(streams.ErrOut, "error: %s\n", message) // nowhere is left to report to
	var h hinted
	if errors.As(err, &h) && h.hint != "" {
		_, _ = fmt.Fprintf(streams.ErrOut, "hint: %s\n", h.hint)
	}
}

// newRootCommand returns the plugin with all its commands.
func newRootCommand(streams genericiooptions.IOStreams) *cobra.Command {
	c := cli{flags: genericclioptions.NewConfigFlags(true), streams: streams}
	root := &cobra.Command{
		Use:           "kubectl-courier",
		Short:         "See which CAs the kubelets of Windows nodes are given, and whether they accept the API server",
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl courier"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return usageError(fmt.Sprintf("unknown command %q", args[0]), "see "+cmd.CommandPath()+" --help")
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(err.Error(), "see "+cmd.CommandPath()+" --help")
	})
	c.flags.AddFlags(root.PersistentFlags())
	root.AddCommand(newCheckCommand(c), newPlanCommand(c), newStatusCommand(c), newVerifyCommand(c))
	return root
}
