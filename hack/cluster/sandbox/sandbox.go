// Package sandbox is what the real kubelet needs around it on a machine that is no node: a container runtime, which is
// the fake one of Kubernetes' own tests, and a way to kube-apiserver out of its network namespace.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	"k8s.io/cri-client/pkg/fake"

	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/relay"
)

// Run serves the container runtime interface on the socket, and forwards connections to the address to kube-apiserver,
// until the context ends.
func Run(ctx context.Context, c layout.Cluster, socket, address string) error {
	runtime := fake.NewFakeRemoteRuntime()
	if err := runtime.Start("unix://" + socket); err != nil {
		return err
	}
	defer runtime.Stop()
	server, err := url.Parse(c.APIServer)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("forward to kube-apiserver: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go forward(conn, server.Host)
	}
}

// forward joins a connection to one of its own. Where that cannot be made, the client sees its end and tries again.
func forward(client net.Conn, address string) {
	server, err := net.Dial("tcp", address)
	if err != nil {
		_ = client.Close()
		return
	}
	relay.Join(client, server)
}
