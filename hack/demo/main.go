// Command demo brings up a local cluster with three Windows nodes and shows one rotation of the kubelet's client CAs as a
// story that an admin can follow. It leaves the cluster up; --down ends it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"kubelet-ca-courier/hack/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

// run parses the command line and runs the demo, or ends it.
func run(ctx context.Context, args []string, out, stderr io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	down := flags.Bool("down", false, "end what an earlier demo left running")
	dir := flags.String("dir", "", "directory of the cluster (default: one below the user's cache)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(out)
			flags.Usage()
			return nil
		}
		return fmt.Errorf("%w\nhint: see --help", err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q\nhint: see --help", flags.Arg(0))
	}
	if *dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("no place for the demo's cluster: %w\nhint: name one with --dir", err)
		}
		*dir = filepath.Join(cache, "kubelet-ca-courier", "demo")
	}
	l, err := lab.Open(ctx, *dir, stderr)
	if err != nil {
		return err
	}
	if *down {
		_, err := l.Cluster(ctx, "down")
		return err
	}
	return newStory(l, out).tell(ctx)
}
