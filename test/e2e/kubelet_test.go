package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"kubelet-ca-courier/hack/lab/labtest"
	"kubelet-ca-courier/test/need"
)

// TestRealKubeletAcceptsTheNewSignerAfterDelivery is the purpose of the whole. The kubelet is the real program; its
// client-CA file is the one that win-1's Job writes.
func TestRealKubeletAcceptsTheNewSignerAfterDelivery(t *testing.T) {
	need.Root(t)
	need.Tool(t, "ip", "iproute2")
	need.Tool(t, "nsenter", "util-linux")
	c := start(t)
	c.settled(t, c.publish(t), windowsNodes...)
	labtest.Must[string](t)(c.Cluster(t.Context(), "real-kubelet", "win-1"))
	labtest.Eventually(t, "the API server reaches the kubelet with the old signer's certificate", c.healthy)
	pid := c.kubeletPID(t)

	labtest.Must[string](t)(c.Bundle(t.Context(), "takeover"))
	labtest.Must[string](t)(c.Cluster(t.Context(), "resign-client", "takeover"))
	// kube-apiserver looks at its client certificate every five minutes, and when it starts.
	labtest.Must[string](t)(c.Cluster(t.Context(), "restart", "kube-apiserver"))
	labtest.Eventually(t, "the kubelet refuses the new signer's certificate before delivery", func(ctx context.Context) error {
		switch err := c.healthy(ctx); {
		case err == nil:
			return errors.New("it answers ok")
		case apierrors.IsUnauthorized(err) || strings.Contains(err.Error(), "Unauthorized"):
			return nil
		default:
			return err
		}
	})

	c.settled(t, c.publish(t, "takeover"), windowsNodes...)

	labtest.Eventually(t, "the kubelet accepts the new signer's certificate after delivery", c.healthy)
	if now := c.kubeletPID(t); now != pid {
		t.Errorf("the kubelet was restarted: its process was %d and is %d", pid, now)
	}
}

// healthy asks the real kubelet through the API server's node proxy.
func (c *cluster) healthy(ctx context.Context) error {
	answer, err := c.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/kubelet-win-1/proxy/healthz").DoRaw(ctx)
	if err != nil {
		return err
	}
	if string(answer) != "ok" {
		return fmt.Errorf("it answers %q", answer)
	}
	return nil
}

// kubeletPID returns the process id of the real kubelet.
func (c *cluster) kubeletPID(t *testing.T) int {
	t.Helper()
	var status struct {
		Processes []struct {
			Name, State string
			PID         int
		}
	}
	if err := json.Unmarshal([]byte(labtest.Must[string](t)(c.Cluster(t.Context(), "status", "-o", "json"))), &status); err != nil {
		t.Fatal(err)
	}
	for _, process := range status.Processes {
		if process.Name == "kubelet-win-1" && process.State == "running" {
			return process.PID
		}
	}
	t.Fatalf("the real kubelet does not run: %+v", status.Processes)
	return 0
}
