package network

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"kubelet-ca-courier/bundle/bundletest"
	"kubelet-ca-courier/test/scale/lab"
)

const (
	// schemaName names what sends courier's requests to a priority level that serves none.
	schemaName = "courier-refused"
	// refusedOften is how many refusals courier's own metrics have to count.
	refusedOften = 15
)

// refusals has API Priority and Fairness refuse what courier asks for.
func refusals(t *testing.T, c connected) {
	length := c.length()
	c.underway(t, c.rotate(t))
	allow := c.refuse(t)
	begin := time.Now()
	hash := c.rotate(t)
	count := 0
	eventually(t, "courier is refused again and again", func(ctx context.Context) error {
		var err error
		if count, err = c.refused(ctx); err == nil && count < refusedOften {
			err = fmt.Errorf("%d refusals", count)
		}
		return err
	})
	took := time.Since(begin)
	t.Log("kubectl courier status: ", c.status(t))
	allow()
	ended := time.Now()
	c.settled(t, hash)
	t.Logf("%d refusals in %.1f s; delivered %.0f s after the end", count, took.Seconds(), time.Since(ended).Seconds())
	if err := c.mentions(length, "refuses requests for their rate"); err != nil {
		t.Error(err)
	}
	if !slices.ContainsFunc(c.requests(t), func(r auditv1.Event) bool { return r.ResponseStatus.Code == http.StatusTooManyRequests }) {
		t.Error("the audit log has no refusal")
	}
	// Every worker, watch and lease waits as long as the API server asks, and then asks once more.
	if perSecond := float64(count) / max(1, took.Seconds()); perSecond > 60 {
		t.Errorf("courier asks %.0f times a second while it is refused", perSecond)
	}
}

// refuse makes API Priority and Fairness refuse courier's requests, and returns what ends it.
func (c connected) refuse(t *testing.T) (allow func()) {
	t.Helper()
	level := &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: schemaName},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: ptr.To[int32](0), LendablePercent: ptr.To[int32](0), BorrowingLimitPercent: ptr.To[int32](0),
				LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			},
		},
	}
	all := []string{"*"}
	schema := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: schemaName},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: schemaName},
			MatchingPrecedence:         50,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: lab.CourierUser}}},
				ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: all, APIGroups: all, Resources: all, Namespaces: all, ClusterScope: true}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: all, NonResourceURLs: all}},
			}},
		},
	}
	api := c.client.FlowcontrolV1()
	if _, err := api.PriorityLevelConfigurations().Create(t.Context(), level, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	vacate := c.occupy(t, all)
	allow = sync.OnceFunc(func() {
		vacate()
		ctx := context.WithoutCancel(t.Context())
		err := errors.Join(api.FlowSchemas().Delete(ctx, schemaName, metav1.DeleteOptions{}),
			api.PriorityLevelConfigurations().Delete(ctx, schemaName, metav1.DeleteOptions{}))
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(allow)
	return allow
}

// occupy takes the one seat that even a priority level without a share has, with a request in courier's name that waits for
// an admission webhook which does not answer.
func (c connected) occupy(t *testing.T, all []string) (vacate func()) {
	t.Helper()
	const busy = "busy"
	answer := make(chan struct{})
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	_, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: busy},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "busy.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](30),
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), FailurePolicy: ptr.To(admissionregistrationv1.Ignore),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &webhook.URL, CABundle: bundletest.Block(webhook.Certificate().Raw),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: busy}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: all, APIVersions: all, Resources: all},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: busy}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(c.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: lab.CourierUser}
	namesake, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: busy}}
			_, _ = namesake.CoreV1().ConfigMaps(busy).Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		}
	})
	return func() {
		stop()
		close(answer)
		ended.Wait()
		webhook.Close()
		ctx := context.WithoutCancel(t.Context())
		if err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, busy, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}
