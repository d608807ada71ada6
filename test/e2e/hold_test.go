package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// recoveryWriter may write while the webhook is away: a cluster needs it to recover.
const recoveryWriter = "system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client"

func TestMalformedBundleForcedPastTheWebhookIsHeld(t *testing.T) {
	c := start(t)
	content := c.publish(t, "hold")
	jobs := c.settled(t, content, windowsNodes...)
	files := map[string]identity{}
	for _, node := range windowsNodes {
		files[node] = c.fileState(t, node)
	}
	c.allowRecoveryWriter(t)

	c.scaleCourier(t, 0)
	broken := labtest.Must[string](t)(c.Bundle(t.Context(), published...))
	labtest.Must[string](t)(c.PatchGuarded(t.Context(), broken[:len(broken)-40], "--as", recoveryWriter))
	if _, err := c.PatchGuarded(t.Context(), broken); !strings.Contains(isFailure(err), "failed calling webhook") {
		t.Errorf("an ordinary user's write with the webhook away: %v", err)
	}
	c.scaleCourier(t, 2)

	labtest.Eventually(t, "an event on the ConfigMap tells the reason", func(ctx context.Context) error {
		return c.holdEvent(ctx, "BrokenPEM")
	})
	labtest.Eventually(t, "a metric tells the reason", func(ctx context.Context) error {
		return c.metric(ctx, regexp.MustCompile(`(?m)^courier_hold\w*\{[^}]*BrokenPEM[^}]*\} 1$`))
	})
	after := c.settled(t, content, windowsNodes...)
	for _, node := range windowsNodes {
		files[node].unchanged(t, c, node)
		if jobs[node].UID != after[node].UID {
			t.Errorf("%s has got another Job", node)
		}
	}

	c.settled(t, c.publish(t, "repair"), windowsNodes...)
}

// allowRecoveryWriter gives the recovery writer the right that OpenShift gives it.
func (c *cluster) allowRecoveryWriter(t *testing.T) {
	t.Helper()
	const role = "recovery-writer"
	labtest.Must[string](t)(c.KubectlWith(t.Context(), strings.NewReader(fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s, namespace: %[2]s}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, patch, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: %[2]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "%[3]s"}]
`, role, lab.GuardedNamespace, recoveryWriter)), "apply", "-f", "-"))
}

// scaleCourier stops or starts courier and waits until that is done.
func (c *cluster) scaleCourier(t *testing.T, replicas int) {
	t.Helper()
	labtest.Must[string](t)(c.Kubectl(t.Context(), "scale", "deployment/courier", "-n", lab.ManagerNamespace, fmt.Sprintf("--replicas=%d", replicas)))
	labtest.Eventually(t, "courier is scaled", func(ctx context.Context) error {
		pods, err := c.courierPods(ctx)
		if err != nil {
			return err
		}
		ready := 0
		for i := range pods {
			for _, condition := range pods[i].Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if len(pods) != replicas || ready != replicas {
			return fmt.Errorf("%d pods, %d of them ready, for %d replicas", len(pods), ready, replicas)
		}
		return nil
	})
}

func (c *cluster) courierPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := c.client.CoreV1().Pods(lab.ManagerNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=courier"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// holdEvent looks for an event on the guarded ConfigMap that names the code.
func (c *cluster) holdEvent(ctx context.Context, code string) error {
	events, err := c.client.CoreV1().Events(lab.GuardedNamespace).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + lab.GuardedName})
	if err != nil {
		return err
	}
	var seen []string
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && strings.Contains(event.Message, code) {
			return nil
		}
		seen = append(seen, event.Reason+": "+event.Message)
	}
	return fmt.Errorf("no event with %s among %q", code, seen)
}

// metric looks for a line among the metrics of courier's replicas.
func (c *cluster) metric(ctx context.Context, line *regexp.Regexp) error {
	texts, err := c.metrics(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(texts, line.MatchString) {
		return fmt.Errorf("no metric matches %s", line)
	}
	return nil
}
