// Package cli is the command line of the local cluster.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"kubelet-ca-courier/hack/cluster/binaries"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/process"
)

// app holds what every command needs.
type app struct {
	dir      string
	output   string
	out, err io.Writer
	progress *binaries.Progress
}

// hinted is an error with advice.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

func hint(err error, format string, args ...any) error {
	return hinted{err, fmt.Sprintf(format, args...)}
}

// Run runs a command line and returns the exit status: 0, 1 for a failure and 2 for a wrong command line.
func Run(ctx context.Context, args []string, out, stderr io.Writer) int {
	a := &app{out: out, err: stderr, progress: binaries.NewProgress(stderr, isTerminal(stderr))}
	root := a.command()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "error: %v\n", err)
	var h hinted
	var failure *binaries.Failure
	var usage usageError
	switch {
	case errors.As(err, &h):
		fmt.Fprintf(stderr, "hint: %s\n", h.hint)
	case errors.As(err, &failure):
		for _, line := range failure.Output[:max(0, len(failure.Output)-1)] {
			fmt.Fprintf(stderr, "go: %s\n", line)
		}
		fmt.Fprintln(stderr, "hint: building takes Go and, the first time, a network for its modules; without them, set KUBEBUILDER_ASSETS to a directory that holds the programs")
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "hint: see '%s --help'\n", root.Name())
		return 2
	}
	return 1
}

// usageError is a wrong command line.
type usageError struct{ error }

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "a local Kubernetes cluster of real parts, with Windows nodes that are simulated",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return nil
		},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.prepare() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&a.dir, "dir", os.Getenv("COURIER_CLUSTER_DIR"),
		"directory of the cluster (default: one below the user's cache; or COURIER_CLUSTER_DIR)")
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "", "json, for programs")
	root.AddCommand(a.lifecycle()...)
	root.AddCommand(a.processes()...)
	root.AddCommand(a.nodes()...)
	root.AddCommand(a.certManager(), a.realKubelet(), a.image())
	return root
}

// exactly demands positional arguments, which it names when they are missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usageError{fmt.Errorf("missing argument %s", names[len(args)])}
		case len(args) > len(names):
			return usageError{fmt.Errorf("unexpected argument %q", args[len(names)])}
		}
		return nil
	}
}

func (a *app) prepare() error {
	if runtime.GOOS != "linux" {
		return hint(errors.New("the local cluster needs Linux: its processes share the loopback range 127.0.0.0/8"),
			"run it in a Linux container or virtual machine")
	}
	if a.output != "" && a.output != "json" {
		return usageError{fmt.Errorf("unknown output format %q", a.output)}
	}
	if a.dir == "" {
		cache, err := binaries.DefaultCache()
		if err != nil {
			return hint(err, "give the cluster a directory with --dir")
		}
		a.dir = filepath.Join(cache, "clusters", "default")
	}
	dir, err := filepath.Abs(a.dir)
	a.dir = dir
	return err
}

// load returns the cluster and its processes.
func (a *app) load() (layout.Cluster, process.Table, error) {
	c, err := layout.Load(a.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = hint(fmt.Errorf("there is no cluster in %s", a.dir), "start one with 'up', or name its directory with --dir")
	}
	return c, process.Table{Dir: a.dir}, err
}

func (a *app) store() (binaries.Store, error) {
	source, err := binaries.FindSource()
	if err != nil {
		return binaries.Store{}, err
	}
	cache, err := binaries.DefaultCache()
	return binaries.Store{Source: source, Cache: cache, Progress: a.progress}, err
}

// print writes v as JSON where that was asked for, and text otherwise.
func (a *app) print(v any, text string) error {
	if a.output != "json" {
		_, err := fmt.Fprint(a.out, text)
		return err
	}
	encoder := json.NewEncoder(a.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
