package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

func TestADeletedJobsNamespaceIsToldAndFilledAgainOnceItIsBack(t *testing.T) {
	c := start(t)
	c.settled(t, c.rotate(t))
	content := c.rotate(t) // from the second bundle on, courier asks for pods before it makes a Job
	c.settled(t, content)
	whole := c.neverBroken(t)
	defer whole()
	blocked := c.warnedOf(t, dispatcher.ReasonBlocked)
	c.kubectl(t, "delete", "namespace", lab.JobsNamespace)
	blocked()
	c.kubectl(t, "apply", "--server-side", "-k", lab.Overlay)
	c.settled(t, content)
}

func TestADeletedManagersNamespaceLosesNothingAndDeliversNothingTwice(t *testing.T) {
	c := start(t)
	c.settled(t, c.rotate(t))
	whole := c.neverBroken(t)
	defer whole()
	since := labtest.Must[int64](t)(c.AuditLength())
	first, goOn := c.rotateHalf(t)
	c.halfway(t, first, "win-1", "win-2")

	c.kubectl(t, "delete", "namespace", lab.ManagerNamespace)
	c.underway(t, first)
	t.Log("an administrator is told:", c.refusedFor(t, `service "courier-webhook" not found`))
	second := c.rotate(t, asOperator()...)
	goOn()
	c.settled(t, first) // a Job that was there ends by itself, and nobody makes another one
	if pods := labtest.Must[string](t)(c.Kubectl(t.Context(), "get", "pods", "-A", "-l", "app.kubernetes.io/component=courier", "-o", "name")); pods != "" {
		t.Errorf("courier is still there: %s", pods)
	}

	if err := c.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.settled(t, second)
	for _, node := range windowsNodes {
		if made := c.made(t, since, node); made != 2 {
			t.Errorf("%d Jobs were made for %s, want one for each of two bundles", made, node)
		}
	}
	c.judges(t)
	c.settled(t, c.rotate(t))
}

// halfway waits until one node has the content and the other one's Job is there.
func (c *cluster) halfway(t *testing.T, content []byte, done, paused string) {
	t.Helper()
	labtest.Eventually(t, "one node has the bundle, and one is about to", func(ctx context.Context) error {
		jobs, err := c.Jobs(ctx)
		if err != nil {
			return err
		}
		for node, want := range map[string]dispatcher.Phase{done: dispatcher.Succeeded, paused: dispatcher.Live} {
			job, there := jobs[node]
			if !there {
				return fmt.Errorf("%s has no Job", node)
			}
			if r := dispatcher.ReadRecord(&job); r.Phase != want || r.Hash != bundle.Hash(content) || r.Deleting {
				return fmt.Errorf("the Job of %s is %s with bundle %.8s", node, r.Phase, r.Hash)
			}
		}
		return nil
	})
	if data := labtest.Must[[]byte](t)(os.ReadFile(c.File(done))); !bytes.Equal(data, content) {
		t.Errorf("%s holds other bytes", done)
	}
}

// made counts the Jobs that were made for a node since the audit log had that length.
func (c *cluster) made(t *testing.T, since int64, node string) int {
	t.Helper()
	count := 0
	for _, event := range labtest.Must[[]auditv1.Event](t)(c.Audit(since)) {
		if event.Verb == "create" && event.ObjectRef.Resource == "jobs" && event.ObjectRef.Subresource == "" &&
			event.ObjectRef.Name == dispatcher.NodeKey(node) && event.ResponseStatus.Status != metav1.StatusFailure {
			count++
		}
	}
	return count
}
