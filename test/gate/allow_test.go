package gate

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// alwaysAllow is a webhook that looks at nothing.
func alwaysAllow() http.Handler {
	return &admission.Webhook{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		return admission.Allowed("")
	})}
}

// applyAlwaysAllow sends the writes of the object to that webhook, in the way that the shipped configuration sends those of
// the guarded one to the gate.
func (c *cluster) applyAlwaysAllow(t *testing.T, object *corev1.ConfigMap) {
	t.Helper()
	configuration := shippedWebhook(t, "openshift")
	configuration.ObjectMeta = metav1.ObjectMeta{Name: "allow"}
	configuration.Webhooks = configuration.Webhooks[:1]
	hook := &configuration.Webhooks[0]
	hook.Name = "allow.gate.kubelet-ca-courier"
	hook.ClientConfig.Service.Path = ptr.To("/allow")
	hook.MatchConditions[0].Expression = "(request.operation == 'DELETE' ? oldObject : object).metadata.name == '" + object.Name + "'"
	hook.ClientConfig.CABundle = c.caBundle
	if err := c.admin.Create(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
}

// timed is how long the patch takes.
func (c *cluster) timed(t *testing.T, object *corev1.ConfigMap, patch client.Patch) time.Duration {
	t.Helper()
	start := time.Now()
	if err := c.admin.Patch(t.Context(), object.DeepCopy(), patch); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// ratioAt compares two samples at a quantile.
func ratioAt(ours, theirs []time.Duration, quantile float64) float64 {
	at := func(sample []time.Duration) float64 {
		sorted := slices.Sorted(slices.Values(sample))
		return float64(sorted[int(quantile*float64(len(sorted)-1))])
	}
	return at(ours) / at(theirs)
}
