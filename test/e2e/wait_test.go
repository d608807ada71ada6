package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/hack/lab"
)

// eventually tries until the attempt succeeds; its last error is the failure.
func eventually(t *testing.T, what string, attempt func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // clean-up waits as well
	defer cancel()
	for {
		err := attempt(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v\nlogs: %s/logs", what, err, shared.Dir)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// must stops the test where what should work does not.
func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\nlogs: %s/logs", err, shared.Dir)
		}
		return v
	}
}

// signers makes sure that the signers exist, and returns the bundle of them all.
func (c *cluster) signers(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if err := c.Signer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	return must[string](t)(c.Cluster(t.Context(), append([]string{"signer", "bundle"}, names...)...))
}

// publish adds the signers to the guarded ConfigMap and returns the content that nodes must end with. Those published
// before stay, as the gate demands.
func (c *cluster) publish(t *testing.T, names ...string) []byte {
	t.Helper()
	for _, name := range names {
		if !slices.Contains(c.published, name) {
			c.published = append(c.published, name)
		}
	}
	return c.publishInOrder(t, c.published)
}

// publishInOrder writes the signers into the guarded ConfigMap.
func (c *cluster) publishInOrder(t *testing.T, names []string) []byte {
	t.Helper()
	text := c.signers(t, names...)
	must[string](t)(c.PatchGuarded(t.Context(), text))
	managed := must[*corev1.ConfigMap](t)(c.client.CoreV1().ConfigMaps(lab.ManagedNamespace).Get(t.Context(), lab.ManagedName, metav1.GetOptions{}))
	guarded, findings := bundle.Parse([]byte(text))
	extra, more := bundle.Parse([]byte(managed.Data[lab.GuardedKey]))
	if len(findings)+len(more) > 0 {
		t.Fatalf("the test's own bundles are not well-formed: %v %v", findings, more)
	}
	return bundle.Merge(guarded, extra).Canonical()
}

// settled waits until every one of the nodes holds the content and every Job has succeeded; it returns the Jobs by node.
func (c *cluster) settled(t *testing.T, content []byte, nodes ...string) map[string]batchv1.Job {
	t.Helper()
	var jobs map[string]batchv1.Job
	eventually(t, "every node holds the bundle", func(ctx context.Context) error {
		for _, node := range nodes {
			if err := c.holds(node, content); err != nil {
				return err
			}
		}
		var err error
		jobs, err = c.succeeded(ctx, bundle.Hash(content), nodes)
		return err
	})
	return jobs
}

// holds checks the file of a node.
func (c *cluster) holds(node string, content []byte) error {
	data, err := os.ReadFile(c.file(node))
	if err != nil {
		return err
	}
	if !bytes.Equal(data, content) {
		return fmt.Errorf("%s holds other bytes, sha256 %s", node, bundle.Hash(data))
	}
	return nil
}

// file is the kubelet's client-CA file on a Windows node.
func (c *cluster) file(node string) string { return c.Disk(node, "k", "kubelet-ca.crt") }

// succeeded returns the Jobs by node, where there is exactly one succeeded Job for each of the nodes and no other.
func (c *cluster) succeeded(ctx context.Context, hash string, nodes []string) (map[string]batchv1.Job, error) {
	list, err := c.client.BatchV1().Jobs(lab.JobsNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	jobs := map[string]batchv1.Job{}
	for _, job := range list.Items {
		r := dispatcher.ReadRecord(&job)
		if r.Hash != hash || r.Phase != dispatcher.Succeeded {
			return nil, fmt.Errorf("the Job %s of %s is %s with bundle %.8s", job.Name, r.NodeName, r.Phase, r.Hash)
		}
		if _, again := jobs[r.NodeName]; again {
			return nil, fmt.Errorf("%s has two Jobs", r.NodeName)
		}
		jobs[r.NodeName] = job
	}
	for _, node := range nodes {
		if _, found := jobs[node]; !found {
			return nil, fmt.Errorf("%s has no Job", node)
		}
	}
	if len(jobs) != len(nodes) {
		return nil, fmt.Errorf("%d Jobs for %d nodes", len(jobs), len(nodes))
	}
	return jobs, nil
}

// asks sends a request to the kubelet server of a node, with a client certificate of the signer, and returns the answer.
func (c *cluster) asks(ctx context.Context, node, signer string) (string, error) {
	answer, err := c.Cluster(ctx, "ask", node, "--signer", signer)
	if answer != "" {
		err = nil // a refusal is an answer
	}
	return strings.TrimSpace(answer), err
}

// answers waits until a node's kubelet server answers a client of the signer with the status.
func (c *cluster) answers(t *testing.T, node, signer, status string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s answers %s to the signer %s", node, status, signer), func(ctx context.Context) error {
		answer, err := c.asks(ctx, node, signer)
		if err == nil && !strings.HasPrefix(answer, status) {
			return fmt.Errorf("it answers %q", answer)
		}
		return err
	})
}

// identity is what a write to a file changes: replacing makes another file, rewriting another time.
type identity struct {
	info fs.FileInfo
}

// fileState looks at a node's file.
func (c *cluster) fileState(t *testing.T, node string) identity {
	t.Helper()
	return identity{must[fs.FileInfo](t)(os.Stat(c.file(node)))}
}

// unchanged fails the test when the node's file was written since.
func (before identity) unchanged(t *testing.T, c *cluster, node string) {
	t.Helper()
	after := c.fileState(t, node)
	if !os.SameFile(before.info, after.info) || !before.info.ModTime().Equal(after.info.ModTime()) {
		t.Errorf("the file of %s was written again", node)
	}
}

// isFailure returns what kubectl said when it failed.
func isFailure(err error) string {
	var failure *lab.Failure
	if errors.As(err, &failure) {
		return failure.Stderr
	}
	return ""
}
