package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

func TestRotationLandsTheSnapshotOnceOnEveryNode(t *testing.T) {
	c := start(t)
	c.settled(t, c.publish(t), windowsNodes...)
	labtest.Must[string](t)(c.Bundle(t.Context(), "rotation"))
	for _, node := range windowsNodes {
		c.answers(t, node, "rotation", "401")
	}

	content := c.publish(t, "rotation")
	jobs := c.settled(t, content, windowsNodes...)

	snapshot := labtest.Must[*corev1.ConfigMap](t)(c.client.CoreV1().ConfigMaps(lab.JobsNamespace).Get(t.Context(),
		"kubelet-ca-"+bundle.Hash(content)[:16], metav1.GetOptions{}))
	if snapshot.Data[lab.GuardedKey] != string(content) || snapshot.Immutable == nil || !*snapshot.Immutable {
		t.Errorf("the snapshot %s is not the immutable copy of the bundle", snapshot.Name)
	}
	for _, node := range windowsNodes {
		job := jobs[node]
		if r := dispatcher.ReadRecord(&job); r.Attempt != 1 {
			t.Errorf("%s needed %d attempts", node, r.Attempt)
		}
		c.wroteOnce(t, job)
		c.answers(t, node, "rotation", "200")
	}
}

// wroteOnce checks that the Job had one pod, and that its landing says that it wrote the file.
func (c *cluster) wroteOnce(t *testing.T, job batchv1.Job) {
	t.Helper()
	pods := labtest.Must[*corev1.PodList](t)(c.client.CoreV1().Pods(lab.JobsNamespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: batchv1.ControllerUidLabel + "=" + string(job.UID)}))
	if len(pods.Items) != 1 {
		t.Fatalf("the Job %s has %d pods", job.Name, len(pods.Items))
	}
	logs := labtest.Must[[]byte](t)(c.client.CoreV1().Pods(lab.JobsNamespace).GetLogs(pods.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(t.Context()))
	var result struct {
		Outcome string `json:"outcome"`
	}
	if err := json.Unmarshal([]byte(strings.TrimSpace(string(logs))), &result); err != nil || result.Outcome != "replaced" {
		t.Errorf("the landing of %s reports %q (%v)", job.Name, logs, err)
	}
}

func TestTheSameBundleAgainMakesNoJobAndNoWrite(t *testing.T) {
	c := start(t)
	content := c.publish(t, "rotation")
	jobs := c.settled(t, content, windowsNodes...)
	files := map[string]identity{}
	for _, node := range windowsNodes {
		files[node] = c.fileState(t, node)
	}

	since := labtest.Must[int64](t)(c.AuditLength())
	backwards := slices.Clone(published)
	slices.Reverse(backwards)
	labtest.Must[[]byte](t)(c.Publish(t.Context(), backwards...)) // another order is the same trust
	// What comes next through the same dispatcher shows that it is done with the write.
	labtest.Must[string](t)(c.Kubectl(t.Context(), "delete", "job", jobs["win-3"].Name, "-n", lab.JobsNamespace))
	after := c.settled(t, content, windowsNodes...)

	want := []string{"create jobs " + after["win-3"].Name}
	if diff := cmp.Diff(want, c.courierWrites(t, since)); diff != "" {
		t.Errorf("courier's writes (-want +got):\n%s", diff)
	}
	for _, node := range []string{"win-1", "win-2"} {
		if jobs[node].UID != after[node].UID {
			t.Errorf("%s has got another Job", node)
		}
		files[node].unchanged(t, c, node)
	}
}

// courierWrites lists what courier's account has written since the audit log had that length, events aside.
func (c *cluster) courierWrites(t *testing.T, since int64) []string {
	t.Helper()
	var writes []string
	for _, event := range labtest.Must[[]auditv1.Event](t)(c.Audit(since)) {
		write := slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, event.Verb)
		ours := event.User.Username == "system:serviceaccount:"+lab.ManagerNamespace+":courier"
		if write && ours && event.ObjectRef.Resource != "events" {
			writes = append(writes, event.Verb+" "+event.ObjectRef.Resource+" "+event.ObjectRef.Name)
		}
	}
	return writes
}

func TestJoiningNodeGetsOneJobForItAlone(t *testing.T) {
	c := start(t)
	content := c.publish(t, "rotation")
	before := c.settled(t, content, windowsNodes...)

	labtest.Must[string](t)(c.Cluster(t.Context(), "add-node", "win-4"))
	t.Cleanup(func() {
		ctx := context.Background()
		if _, err := c.Cluster(ctx, "remove-node", "win-4"); err != nil {
			t.Error(err)
		}
		labtest.Eventually(t, "the Job goes with its node", func(ctx context.Context) error {
			_, err := c.Succeeded(ctx, bundle.Hash(content), windowsNodes...)
			return err
		})
	})

	after := c.settled(t, content, append([]string{"win-4"}, windowsNodes...)...)
	for _, node := range windowsNodes {
		if before[node].UID != after[node].UID {
			t.Errorf("%s has got another Job when win-4 joined", node)
		}
	}
}

func TestDeletedJobIsDeliveredAgainToItsNodeAlone(t *testing.T) {
	c := start(t)
	content := c.publish(t, "rotation")
	before := c.settled(t, content, windowsNodes...)

	labtest.Must[string](t)(c.Kubectl(t.Context(), "delete", "job", before["win-2"].Name, "-n", lab.JobsNamespace))

	after := c.settled(t, content, windowsNodes...)
	for _, node := range windowsNodes {
		if again := before[node].UID != after[node].UID; again != (node == "win-2") {
			t.Errorf("another Job for %s: %v", node, again)
		}
	}
}
