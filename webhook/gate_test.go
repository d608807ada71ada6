package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

// guardedRef is what the tests guard.
func guardedRef() Ref { return Ref{Namespace: "signers", Name: "ca", Key: "ca-bundle.crt"} }

// newGate is a gate whose clock shows the moment at which the tests' certificates are valid.
func newGate(t testing.TB) (*gate, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	return &gate{guarded: guardedRef, clock: clocktesting.NewFakePassiveClock(bundletest.At()), metrics: m}, registry
}

// configMap is the guarded ConfigMap with the text under its key.
func configMap(text []byte, edits ...func(*corev1.ConfigMap)) *corev1.ConfigMap {
	object := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "signers", Name: "ca"},
		Data:       map[string]string{"ca-bundle.crt": string(text)},
	}
	for _, edit := range edits {
		edit(object)
	}
	return object
}

func inBinaryData(object *corev1.ConfigMap) {
	object.BinaryData = map[string][]byte{"ca-bundle.crt": []byte(object.Data["ca-bundle.crt"])}
	object.Data = nil
}

func immutable(object *corev1.ConfigMap) { object.Immutable = ptr.To(true) }

func allowing(text string) func(*corev1.ConfigMap) {
	return func(object *corev1.ConfigMap) {
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, bundle.AllowanceAnnotation, text)
	}
}

func fingerprint(ca bundletest.CA) string { return bundle.Hash(ca.Certificate.Raw) }

// request is the request that the API server would send.
func request(t testing.TB, old, changed *corev1.ConfigMap, username string) *admissionv1.AdmissionRequest {
	t.Helper()
	r := &admissionv1.AdmissionRequest{
		UID: "1", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		UserInfo: authenticationv1.UserInfo{Username: username},
	}
	encode := func(object *corev1.ConfigMap) runtime.RawExtension {
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: raw}
	}
	switch {
	case old == nil:
		r.Operation, r.Object, r.Name = admissionv1.Create, encode(changed), changed.Name
	case changed == nil:
		r.Operation, r.OldObject = admissionv1.Delete, encode(old) // no name, as with deletecollection
	default:
		r.Operation, r.Object, r.OldObject, r.Name = admissionv1.Update, encode(changed), encode(old), changed.Name
	}
	return r
}

// reviewBody is the body of a review.
func reviewBody(t testing.TB, r *admissionv1.AdmissionRequest) []byte {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: r,
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// ask sends a review to the handler.
func ask(t testing.TB, handler http.Handler, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	recorder := httptest.NewRecorder()
	posted := httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(reviewBody(t, r)))
	posted.Header.Set("Content-Type", "application/json")
	handler.ServeHTTP(recorder, posted)
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil || review.Response == nil {
		t.Fatalf("status %d, no review in %q: %v", recorder.Code, recorder.Body, err)
	}
	return review.Response
}

// causes are the codes and fields of a denial.
func causes(response *admissionv1.AdmissionResponse) []string {
	var all []string
	if response.Result != nil && response.Result.Details != nil {
		for _, cause := range response.Result.Details.Causes {
			all = append(all, string(cause.Type)+" "+cause.Field)
		}
	}
	return all
}

func TestChangesOfTheObject(t *testing.T) {
	a, b := bundletest.Named(t, "a"), bundletest.Named(t, "b")
	both, one := bundletest.Bundle(a, b), bundletest.Bundle(b)
	broken := append([]byte("\ufeff"), both...)
	const inData, inBinary = "data[ca-bundle.crt]", "binaryData[ca-bundle.crt]"
	const annotation = "metadata.annotations[kubelet-ca-courier/allow-drop]"
	for name, c := range map[string]struct {
		old, changed *corev1.ConfigMap
		causes       []string
		warning      bundle.Code
	}{
		"created well":                        {changed: configMap(both)},
		"created well in binaryData":          {changed: configMap(both, inBinaryData)},
		"created without the key":             {changed: &corev1.ConfigMap{ObjectMeta: configMap(nil).ObjectMeta}, causes: []string{"MissingBundle " + inData}},
		"created empty":                       {changed: configMap(nil), causes: []string{"MissingBundle " + inData}},
		"created broken in binaryData":        {changed: configMap(broken, inBinaryData), causes: []string{"BrokenPEM " + inBinary}},
		"created immutable":                   {changed: configMap(both, immutable), causes: []string{"Immutable immutable"}},
		"extended":                            {old: configMap(one), changed: configMap(both)},
		"a CA dropped":                        {old: configMap(both), changed: configMap(one), causes: []string{"DropsValidCA " + inData}},
		"the key removed":                     {old: configMap(both), changed: &corev1.ConfigMap{ObjectMeta: configMap(nil).ObjectMeta}, causes: []string{"MissingBundle " + inData}},
		"the key renamed":                     {old: configMap(both), changed: configMap(both, func(o *corev1.ConfigMap) { o.Data = map[string]string{"ca.crt": string(both)} }), causes: []string{"MissingBundle " + inData}},
		"another key added":                   {old: configMap(both), changed: configMap(both, func(o *corev1.ConfigMap) { o.Data["note"] = "x" })},
		"labelled":                            {old: configMap(both), changed: configMap(both, func(o *corev1.ConfigMap) { o.Labels = map[string]string{"a": "b"} })},
		"labelled though broken":              {old: configMap(broken), changed: configMap(broken, func(o *corev1.ConfigMap) { o.Labels = map[string]string{"a": "b"} })},
		"labelled though the key is missing":  {old: &corev1.ConfigMap{ObjectMeta: configMap(nil).ObjectMeta}, changed: &corev1.ConfigMap{ObjectMeta: configMap(nil, allowing("")).ObjectMeta}},
		"moved to binaryData unchanged":       {old: configMap(both), changed: configMap(both, inBinaryData)},
		"moved to data unchanged":             {old: configMap(both, inBinaryData), changed: configMap(both)},
		"moved to binaryData and extended":    {old: configMap(one), changed: configMap(both, inBinaryData), causes: []string{"MissingBundle " + inBinary}},
		"moved to data and extended":          {old: configMap(one, inBinaryData), changed: configMap(both), causes: []string{"MissingBundle " + inData}},
		"made immutable":                      {old: configMap(both), changed: configMap(both, immutable), causes: []string{"Immutable immutable"}},
		"labelled though immutable":           {old: configMap(both, immutable), changed: configMap(both, immutable)},
		"an allowed drop":                     {old: configMap(both), changed: configMap(one, allowing(fingerprint(a))), warning: bundle.AllowedDrop},
		"an allowed drop, in other letters":   {old: configMap(both), changed: configMap(one, allowing("SHA256:"+strings.ToUpper(fingerprint(a)))), warning: bundle.AllowedDrop},
		"a drop that was allowed before":      {old: configMap(both, allowing(fingerprint(a))), changed: configMap(one, allowing(fingerprint(a))), warning: bundle.AllowedDrop},
		"a drop to be allowed":                {old: configMap(both), changed: configMap(both, allowing(fingerprint(a)))},
		"an allowance that names nothing":     {old: configMap(both), changed: configMap(both, allowing(strings.Repeat("0", 64))), warning: bundle.BadAllowance},
		"an allowance that is malformed":      {old: configMap(both), changed: configMap(both, allowing("the old one")), causes: []string{"BadAllowance " + annotation}},
		"an old allowance that names nothing": {old: configMap(one, allowing(fingerprint(a))), changed: configMap(both, allowing(fingerprint(a)))},
		"an old allowance that is malformed":  {old: configMap(one, allowing("x")), changed: configMap(both, allowing("x"))},
		"an allowance for all":                {old: configMap(both), changed: configMap(nil, allowing(fingerprint(a)+","+fingerprint(b))), causes: []string{"MissingBundle " + inData}},
		"deleted":                             {old: configMap(both), causes: []string{"Deletion metadata"}},
		"deleted though broken":               {old: configMap(broken), causes: []string{"Deletion metadata"}},
		"another object of the namespace":     {old: configMap(both), changed: configMap(nil, func(o *corev1.ConfigMap) { o.Name = "other" })},
		"an object of the name elsewhere":     {changed: configMap(nil, func(o *corev1.ConfigMap) { o.Namespace = "other" })},
		"two faults":                          {old: configMap(both), changed: configMap(broken, immutable), causes: []string{"BrokenPEM " + inData, "Immutable immutable"}},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := newGate(t)
			response := ask(t, g.handler(clientgoscheme.Scheme), request(t, c.old, c.changed, "admin"))
			if got := causes(response); !slices.Equal(got, c.causes) || response.Allowed != (len(c.causes) == 0) {
				t.Fatalf("allowed %v, causes %q, want %q: %+v", response.Allowed, got, c.causes, response.Result)
			}
			if response.UID != "1" {
				t.Errorf("the answer is to %q", response.UID)
			}
			if c.warning != "" && (len(response.Warnings) != 1 || !strings.HasPrefix(response.Warnings[0], string(c.warning)+": ")) {
				t.Errorf("warnings %q, want %s", response.Warnings, c.warning)
			}
			if !response.Allowed && (response.Result.Reason == "" || response.Result.Code < 400 || response.Result.Details.Kind != "ConfigMap") {
				t.Errorf("the Status is not whole: %+v", response.Result)
			}
		})
	}
}

func TestTheNamespaceControllerMayDelete(t *testing.T) {
	g, _ := newGate(t)
	response := ask(t, g.handler(clientgoscheme.Scheme),
		request(t, configMap(nil), nil, "system:serviceaccount:kube-system:namespace-controller"))
	if !response.Allowed {
		t.Errorf("denied: %+v", response.Result)
	}
}

func TestNothingIsAnsweredBeforeThereIsAConfiguration(t *testing.T) {
	g, _ := newGate(t)
	g.guarded = func() Ref { return Ref{} }
	recorder := httptest.NewRecorder()
	g.handler(clientgoscheme.Scheme).ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, Path, nil))
	if recorder.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d, want a call that failed", recorder.Code)
	}
}

func TestWhatIsGuardedMayChangeAtAnyTime(t *testing.T) {
	g, _ := newGate(t)
	ref := guardedRef()
	g.guarded = func() Ref { return ref }
	handler := g.handler(clientgoscheme.Scheme)
	bad := request(t, nil, configMap(nil), "admin")
	if ask(t, handler, bad).Allowed {
		t.Fatal("a bad bundle is allowed")
	}
	ref.Name = "other"
	if !ask(t, handler, bad).Allowed {
		t.Error("an object that is no longer guarded is refused")
	}
}

func TestVerdictsAreCounted(t *testing.T) {
	g, registry := newGate(t)
	handler := g.handler(clientgoscheme.Scheme)
	a := bundletest.NewCA(t, bundletest.Spec{Name: "a", Until: bundletest.At().Add(time.Hour)})
	good := configMap(a.PEM)
	const operator = "system:serviceaccount:openshift-kube-apiserver-operator:kube-apiserver-operator"
	ask(t, handler, request(t, nil, good, operator))
	ask(t, handler, request(t, good, configMap(append([]byte("\ufeff"), a.PEM...)), "kubernetes-admin"))
	ask(t, handler, request(t, good, nil, "system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client"))
	dry := request(t, nil, configMap(nil), "system:serviceaccount:x:y")
	dry.DryRun = ptr.To(true)
	ask(t, handler, dry)
	ask(t, handler, request(t, nil, configMap(nil, func(o *corev1.ConfigMap) { o.Name = "other" }), "system:apiserver"))
	want := []string{
		"courier_admission_findings_total code=BrokenPEM operation=update verdict=deny writer=other 1",
		"courier_admission_findings_total code=Deletion operation=delete verdict=deny writer=recovery 1",
		"courier_admission_findings_total code=ExpiresSoon operation=create verdict=allow writer=operator 1",
		"courier_admission_reviews_total dry_run=false operation=create verdict=allow writer=operator 1",
		"courier_admission_reviews_total dry_run=false operation=create verdict=unrelated writer=apiserver 1",
		"courier_admission_reviews_total dry_run=false operation=delete verdict=deny writer=recovery 1",
		"courier_admission_reviews_total dry_run=false operation=update verdict=deny writer=other 1",
		"courier_admission_reviews_total dry_run=true operation=create verdict=deny writer=service-account 1",
	}
	if got := counters(t, registry); !slices.Equal(got, want) {
		t.Errorf("counted\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, err := newMetrics(registry); err != nil {
		t.Errorf("a second manager of the process cannot have the metrics: %v", err)
	}
}

// counters writes all counters as text, sorted.
func counters(t testing.TB, registry *prometheus.Registry) []string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if metric.GetCounter() == nil {
				continue
			}
			text := family.GetName()
			for _, label := range metric.GetLabel() {
				text += " " + label.GetName() + "=" + label.GetValue()
			}
			all = append(all, fmt.Sprintf("%s %g", text, metric.GetCounter().GetValue()))
		}
	}
	slices.Sort(all)
	return all
}

func TestAnAnswerStaysReadable(t *testing.T) {
	g, _ := newGate(t)
	text := strings.Repeat("-----BEGIN CERTIFICATE-----\n", 5000)
	response := ask(t, g.handler(clientgoscheme.Scheme), request(t, nil, configMap([]byte(text)), "admin"))
	if got := len(response.Result.Details.Causes); got != maxFindings+1 {
		t.Errorf("%d causes, want %d and one for the rest", got, maxFindings)
	}
	if len(response.Result.Message) > 10_000 || !strings.Contains(response.Result.Message, "more") {
		t.Errorf("the message has %d characters", len(response.Result.Message))
	}
}
