// Package e2e proves the whole on real parts: etcd, kube-apiserver and its controllers, cert-manager, the kubelet, the
// shipped manifests, and the programs that ship. Only the Windows nodes are simulated; hack/cluster/README.md says how far.
//
// The tests share one cluster, since bringing one up takes longer than any of them. Each begins by making sure that what
// the one before left behind has settled, so that each can be run alone as well.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/test/need"
)

// cluster is what the tests share. It is brought up by the first test that asks for it.
type cluster struct {
	*lab.Lab
	client kubernetes.Interface
	config *rest.Config
	up     sync.Once
	err    error
	// published are the signers whose CAs the guarded ConfigMap holds.
	published []string
}

var shared = cluster{published: []string{firstSigner}}

// firstSigner signs the API server's client certificate at the beginning.
const firstSigner = "first"

// windowsNodes are there from the beginning.
var windowsNodes = []string{"win-1", "win-2", "win-3"}

// patience bounds every wait for a condition; nothing takes that long unless it is broken.
const patience = 3 * time.Minute

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run runs the tests and ends the cluster. When a test failed the logs of every process stay where its message says.
func run(m *testing.M) int {
	code := m.Run()
	if shared.Lab == nil {
		return code
	}
	end := shared.end
	if code != 0 {
		end = shared.endButKeepLogs
	}
	if err := end(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: could not end the cluster in %s: %v\n", shared.Dir, err)
		return 1
	}
	return code
}

func (c *cluster) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.Cluster(ctx, "down")
	return err
}

// endButKeepLogs ends the cluster, which removes its files, and puts the logs back.
func (c *cluster) endButKeepLogs() error {
	kept, err := os.MkdirTemp("", "courier-e2e-logs-")
	if err != nil {
		return err
	}
	copied := os.CopyFS(kept, os.DirFS(filepath.Join(c.Dir, "logs")))
	if err := errors.Join(copied, c.end(), os.MkdirAll(c.Dir, 0o755)); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "e2e: the logs of every process are in %s/logs\n", c.Dir)
	return os.Rename(kept, filepath.Join(c.Dir, "logs"))
}

// start returns the shared cluster with courier installed and the first bundle delivered.
func start(t *testing.T) *cluster {
	t.Helper()
	need.ControlPlane(t)
	shared.up.Do(func() { shared.err = shared.bringUp(context.Background()) })
	if shared.err != nil {
		t.Fatalf("bring up the cluster: %v", shared.err)
	}
	return &shared
}

func (c *cluster) bringUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute) // the real kubelet may have to be built
	defer cancel()
	dir, err := os.MkdirTemp("", "courier-e2e-")
	if err != nil {
		return err
	}
	if c.Lab, err = lab.Open(ctx, dir, os.Stderr); err != nil {
		return err
	}
	if _, err := c.Cluster(ctx, "up"); err != nil {
		return err
	}
	if err := c.Furnish(ctx, windowsNodes...); err != nil {
		return err
	}
	if err := c.SeedOpenShift(ctx, firstSigner); err != nil {
		return err
	}
	if err := c.Install(ctx); err != nil {
		return err
	}
	c.client, c.config, err = c.Client()
	return err
}
