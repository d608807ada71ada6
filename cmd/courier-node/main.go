// Command courier-node puts the CA bundle of a mounted ConfigMap in the place of the kubelet's client-CA file, whole or
// not at all, and makes the kubelet notice. It runs once on a Windows node, in a HostProcess container.
//
// Its exit codes are those of package node. It prints one line of JSON on standard output, and errors with hints on
// standard error. It handles no signal: it may be stopped anywhere, and the next run ends well.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"kubelet-ca-courier/node"
)

func main() {
	os.Exit(int(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)))
}

// run does what the arguments say. A panic has an exit code of its own, as Go's is the one for a wrong command line.
func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) (code node.ExitCode) {
	defer func() {
		if fault := recover(); fault != nil {
			fmt.Fprintf(stderr, "error: internal: %v\nhint: this is a fault of courier-node, please report it\n", fault)
			code = node.ExitInternal
		}
	}()
	options, err := parse(arguments)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return node.ExitOK
	case err != nil:
		fmt.Fprintf(stderr, "error: %v\nhint: courier-node --help lists the flags\n", err)
		return node.ExitUsage
	}
	mountPoint := os.Getenv(node.MountPointVariable)
	result := node.NewLander(mountPoint, options.patience).Land(ctx, options.task)
	fmt.Fprintf(stdout, "%s\n", result.Line(0))
	if options.message != "" {
		if err := writeMessage(options.message, mountPoint, result.Line(longestMessage)); err != nil {
			fmt.Fprintf(stderr, "warning: the termination message was not written: %v\n", err)
		}
	}
	if result.Error != "" {
		fmt.Fprintf(stderr, "error: %s\n", result.Error)
	}
	if result.Hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", result.Hint)
	}
	return result.Code
}

// writeMessage writes the termination message into the file that the kubelet mounted for it, and where there is none, at
// the path itself.
func writeMessage(path, mountPoint string, message []byte) error {
	for _, mounted := range node.MountedPaths(path, mountPoint) {
		if _, err := os.Stat(mounted); err == nil {
			path = mounted
			break
		}
	}
	return os.WriteFile(path, message, messageMode)
}
