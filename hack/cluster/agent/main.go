// Command agent is what the local cluster runs beside the control plane; `cluster` starts one process for each.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/sandbox"
	"kubelet-ca-courier/hack/cluster/services"
	"kubelet-ca-courier/hack/cluster/simulate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("this program is started by the local cluster, not by hand")
	}
	c, err := layout.Load(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "services":
		client, err := clientFor(c.Kubeconfig())
		if err != nil {
			return err
		}
		return services.Run(ctx, client)
	case "cri":
		return sandbox.Run(ctx, c, args[2], args[3])
	case "node":
		client, err := clientFor(c.NodeDir(args[2], "kubeconfig"))
		if err != nil {
			return err
		}
		return simulate.Run(ctx, client, c, args[2])
	}
	return fmt.Errorf("unknown task %q", args[0])
}

func clientFor(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // API Priority and Fairness protects the server
	return kubernetes.NewForConfig(config)
}
