package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// settled waits until every one of the nodes holds the content and every Job has succeeded; it returns the Jobs by node.
func (c *cluster) settled(t *testing.T, content []byte, nodes ...string) map[string]batchv1.Job {
	t.Helper()
	var jobs map[string]batchv1.Job
	labtest.Eventually(t, "every node holds the bundle", func(ctx context.Context) (err error) {
		jobs, err = c.Delivered(ctx, content, nodes...)
		return err
	})
	return jobs
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
	labtest.Eventually(t, fmt.Sprintf("%s answers %s to the signer %s", node, status, signer), func(ctx context.Context) error {
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
	return identity{labtest.Must[fs.FileInfo](t)(os.Stat(c.File(node)))}
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
