package decade

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"kubelet-ca-courier/webhook"
)

// The guarded ConfigMap and the one with all CAs, as on OpenShift.
const (
	guardedNamespace = "openshift-kube-apiserver-operator"
	guardedName      = "kube-apiserver-to-kubelet-client-ca"
	managedNamespace = "openshift-config-managed"
	managedName      = "kube-apiserver-client-ca"
	bundleKey        = "ca-bundle.crt"
)

func guardedID() id { return id{"configmaps", guardedNamespace, guardedName} }
func managedID() id { return id{"configmaps", managedNamespace, managedName} }

// gate is admission: the configuration of the webhook and two replicas of it, each with its own clock.
type gate struct {
	w        *world
	replicas []*replica
	// installed says that the ValidatingWebhookConfiguration is there.
	installed bool
}

// replica is one process with the real handler.
type replica struct {
	up      bool
	handler http.Handler
}

func newGate(w *world) *gate {
	g := &gate{w: w, installed: true}
	for _, off := range w.history.replicaClocks {
		g.replicas = append(g.replicas, &replica{up: true, handler: handlerOf(skewed{w, off})})
	}
	return g
}

// registrar is as much of a manager as the webhook needs to register itself.
type registrar struct {
	ctrl.Manager
	server ctrlwebhook.Server
	scheme *runtime.Scheme
}

func (r registrar) GetWebhookServer() ctrlwebhook.Server         { return r.server }
func (r registrar) GetScheme() *runtime.Scheme                   { return r.scheme }
func (r registrar) AddReadyzCheck(string, healthz.Checker) error { return nil }
func handlerOf(c skewed) http.Handler {
	opts := webhook.Options{
		Guarded: func() webhook.Ref { return webhook.Ref{Namespace: guardedNamespace, Name: guardedName, Key: bundleKey} },
		CertDir: "none", Clock: c, Registry: prometheus.NewRegistry(),
	}
	mgr := registrar{server: webhook.NewServer(opts), scheme: clientgoscheme.Scheme}
	if err := webhook.SetupWithManager(mgr, opts); err != nil {
		panic(err)
	}
	return mgr.server.WebhookMux()
}

// admit asks the gate about a write, as the shipped ValidatingWebhookConfiguration has the API server ask: everyone is
// refused while no replica answers, save the operator and the recovery writer.
func (g *gate) admit(user string, k id, old, object client.Object) error {
	if k != guardedID() || !g.installed {
		return nil
	}
	up := slices.DeleteFunc(slices.Clone(g.replicas), func(r *replica) bool { return !r.up })
	writer := user == userOperator || user == userRecovery
	if len(up) == 0 {
		if writer {
			return nil
		}
		return apierrors.NewInternalError(http.ErrServerClosed)
	}
	g.w.stats[reviews]++
	answer := g.ask(up[g.w.draw("replica")%uint64(len(up))], user, k, old, object)
	if answer.Allowed {
		return nil
	}
	g.w.stats[denials]++
	g.w.tell("the gate refuses %s: %s", user, answer.Result.Message)
	if writer {
		g.w.violate(rightWriteRefused, "%s: %s", user, answer.Result.Message)
	}
	return &apierrors.StatusError{ErrStatus: *answer.Result}
}

// ask sends a review over the wire format.
func (g *gate) ask(r *replica, user string, k id, old, object client.Object) *admissionv1.AdmissionResponse {
	request := &admissionv1.AdmissionRequest{
		UID: "review", Namespace: k.namespace, Name: k.name, UserInfo: authenticationv1.UserInfo{Username: user},
		Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "configmaps"},
	}
	switch {
	case old == nil:
		request.Operation = admissionv1.Create
	case object == nil:
		request.Operation = admissionv1.Delete
	default:
		request.Operation = admissionv1.Update
	}
	request.OldObject.Raw, request.Object.Raw = encode(old), encode(object)
	review := admissionv1.AdmissionReview{Request: request}
	review.APIVersion, review.Kind = "admission.k8s.io/v1", "AdmissionReview"
	body, err := json.Marshal(review)
	if err != nil {
		panic(err)
	}
	call := httptest.NewRequest(http.MethodPost, webhook.Path, bytes.NewReader(body))
	call.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	r.handler.ServeHTTP(recorder, call)
	if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil || review.Response == nil {
		panic("the webhook gave no answer: " + recorder.Body.String())
	}
	return review.Response
}

func encode(object client.Object) []byte {
	if object == nil {
		return nil
	}
	cm := object.(*corev1.ConfigMap).DeepCopy()
	cm.APIVersion, cm.Kind = "v1", "ConfigMap"
	raw, err := json.Marshal(cm)
	if err != nil {
		panic(err)
	}
	return raw
}

// outage takes replicas away and brings them back.
func (g *gate) outage(d time.Duration, replicas ...*replica) {
	for _, r := range replicas {
		r.up = false
		g.w.after(d, func() { r.up = g.w.powered.on })
	}
}
