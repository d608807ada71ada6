// Command courier runs in the cluster. Every replica is a gate for the guarded ConfigMap; one of them, the leader, also
// delivers the accepted bundle to the Windows nodes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
)

// version is set by the linker: hack/build.
var version = "dev"

func main() {
	os.Exit(run(ctrl.SetupSignalHandler(), os.Args[1:], os.Stdout, os.Stderr))
}

// run does what the arguments say and returns the exit code: 0 after an orderly stop, 1 after a failure, 2 when used
// wrongly.
func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) int {
	o, flags := newOptions()
	err := flags.Parse(arguments)
	if err == nil {
		err = o.validate(flags.Args())
	}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(stdout, "courier guards the kubelets' client-CA bundle and delivers it to Windows nodes\n\nusage: courier [flags]\n\n%s",
			flags.FlagUsages())
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "error: %v\nhint: courier --help lists the flags\n", err)
		return 2
	}
	if o.version {
		fmt.Fprintf(stdout, "courier %s\n", version)
		return 0
	}
	if err := serve(ctx, o, stderr); err != nil {
		fmt.Fprintf(stderr, "error: %v\n", err)
		if hint := hintFor(err); hint != "" {
			fmt.Fprintf(stderr, "hint: %s\n", hint)
		}
		return 1
	}
	return 0
}

// hinted is an error that a reader can do something about.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

func hintFor(err error) string {
	var h hinted
	if errors.As(err, &h) {
		return h.hint
	}
	return ""
}
