// Command cluster runs a local Kubernetes cluster of real parts for kubelet-ca-courier: etcd and a Kubernetes control
// plane as processes on loopback, simulated Windows nodes that run the real courier-node, and what tests need to break
// them. README.md lists the commands.
//
// This program itself is small, so that it starts within a moment on a fresh machine and can show how far the rest is:
// what needs Kubernetes' own packages is in programs of its own (agent, certmanager), built by this one.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"kubelet-ca-courier/hack/cluster/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
