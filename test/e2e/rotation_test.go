package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
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
)

func TestRotationLandsTheSnapshotOnceOnEveryNode(t *testing.T) {
	c := start(t)
	c.settled(t, c.publish(t), windowsNodes...)
	c.signers(t, "rotation")
	for _, node := range windowsNodes {
		c.answers(t, node, "rotation", "401")
	}

	content := c.publish(t, "rotation")
	jobs := c.settled(t, content, windowsNodes...)

	snapshot := must[*corev1.ConfigMap](t)(c.client.CoreV1().ConfigMaps(lab.JobsNamespace).Get(t.Context(),
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
	pods := must[*corev1.PodList](t)(c.client.CoreV1().Pods(lab.JobsNamespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: batchv1.ControllerUidLabel + "=" + string(job.UID)}))
	if len(pods.Items) != 1 {
		t.Fatalf("the Job %s has %d pods", job.Name, len(pods.Items))
	}
	logs := must[[]byte](t)(c.client.CoreV1().Pods(lab.JobsNamespace).GetLogs(pods.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(t.Context()))
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

	since := c.auditSize(t)
	backwards := slices.Clone(c.published)
	slices.Reverse(backwards)
	c.publishInOrder(t, backwards) // another order is the same trust
	// What comes next through the same dispatcher shows that it is done with the write.
	must[string](t)(c.Kubectl(t.Context(), "delete", "job", jobs["win-3"].Name, "-n", lab.JobsNamespace))
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

// auditSize returns how long the API server's audit log is now.
func (c *cluster) auditSize(t *testing.T) int64 {
	t.Helper()
	return must[fs.FileInfo](t)(os.Stat(c.auditLog())).Size()
}

func (c *cluster) auditLog() string { return c.Dir + "/logs/audit.log" }

// courierWrites lists what courier's account has written since the audit log had that size, leases and events aside.
func (c *cluster) courierWrites(t *testing.T, since int64) []string {
	t.Helper()
	file := must[*os.File](t)(os.Open(c.auditLog()))
	defer func() { _ = file.Close() }()
	must[int64](t)(file.Seek(since, io.SeekStart))
	var writes []string
	for lines := json.NewDecoder(file); ; {
		var event auditv1.Event
		if err := lines.Decode(&event); errors.Is(err, io.EOF) {
			return writes
		} else if err != nil {
			t.Fatalf("read the audit log: %v", err)
		}
		write := slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, event.Verb)
		ours := event.User.Username == "system:serviceaccount:"+lab.ManagerNamespace+":courier"
		if !write || !ours || event.Stage != auditv1.StageResponseComplete || event.ObjectRef == nil ||
			event.ObjectRef.Resource == "leases" || event.ObjectRef.Resource == "events" {
			continue
		}
		writes = append(writes, event.Verb+" "+event.ObjectRef.Resource+" "+event.ObjectRef.Name)
	}
}

func TestJoiningNodeGetsOneJobForItAlone(t *testing.T) {
	c := start(t)
	content := c.publish(t, "rotation")
	before := c.settled(t, content, windowsNodes...)

	must[string](t)(c.Cluster(t.Context(), "add-node", "win-4"))
	t.Cleanup(func() {
		ctx := context.Background()
		if _, err := c.Cluster(ctx, "remove-node", "win-4"); err != nil {
			t.Error(err)
		}
		eventually(t, "the Job goes with its node", func(ctx context.Context) error {
			_, err := c.succeeded(ctx, bundle.Hash(content), windowsNodes)
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

	must[string](t)(c.Kubectl(t.Context(), "delete", "job", before["win-2"].Name, "-n", lab.JobsNamespace))

	after := c.settled(t, content, windowsNodes...)
	for _, node := range windowsNodes {
		if again := before[node].UID != after[node].UID; again != (node == "win-2") {
			t.Errorf("another Job for %s: %v", node, again)
		}
	}
}
