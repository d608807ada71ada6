package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// cli is what the commands that talk to a cluster share: kubectl's own flags, and where to write.
type cli struct {
	flags   *genericclioptions.ConfigFlags
	streams genericiooptions.IOStreams
}

// restConfig returns the connection that kubectl itself would use, without a rate limit of its own: the API server's
// priority and fairness protects it better.
func (c cli) restConfig() (*rest.Config, error) {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, withHint(err, "is KUBECONFIG set, and does `kubectl get nodes` work?")
	}
	config.QPS = -1
	return config, nil
}

// clientset returns a client for the cluster.
func (c cli) clientset() (kubernetes.Interface, error) {
	config, err := c.restConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return client, nil
}

// timeout returns --request-timeout, or the value given where the flag was not.
func (c cli) timeout(unset time.Duration) time.Duration {
	config, err := c.flags.ToRESTConfig()
	if err != nil || config.Timeout == 0 {
		return unset
	}
	return config.Timeout
}

// completeNodes completes the names of Windows nodes.
func (c cli) completeNodes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	client, err := c.clientset()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
	defer cancel()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: defaultSelector})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, 0, len(nodes.Items))
	for _, node := range nodes.Items {
		names = append(names, node.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
