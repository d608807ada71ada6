package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
	"kubelet-ca-courier/test/need"
	"kubelet-ca-courier/webhook"
)

// openshift is what the OpenShift overlay guards.
func openshift() webhook.Ref {
	return webhook.Ref{Namespace: "openshift-kube-apiserver-operator", Name: "kube-apiserver-to-kubelet-client-ca", Key: "ca-bundle.crt"}
}

// signer makes a CA that is valid by the real clock.
func signer(t *testing.T, name string) bundletest.CA {
	t.Helper()
	return bundletest.NewCA(t, bundletest.Spec{Name: name, From: time.Now().Add(-time.Hour), Until: time.Now().AddDate(1, 0, 0)})
}

// object is the guarded ConfigMap with the text.
func (c *cluster) object(text []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.guarded.Namespace, Name: c.guarded.Name},
		Data:       map[string]string{c.guarded.Key: string(text)},
	}
}

// current is the guarded ConfigMap as it is in the cluster.
func (c *cluster) current(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	object := c.object(nil)
	if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// patchOf writes a patch.
func patchOf(t *testing.T, kind types.PatchType, value any) client.Patch {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return client.RawPatch(kind, raw)
}

// merge is the value of a merge patch that sets the key.
func merge(field string, value any) map[string]any {
	return map[string]any{field: map[string]any{"ca-bundle.crt": value}}
}

// jsonPatch is the value of a JSON patch with one operation.
func jsonPatch(operation, path string, value any) []map[string]any {
	return []map[string]any{{"op": operation, "path": path, "value": value}}
}

// codesOf are the codes in the causes of a refusal.
func codesOf(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	causes := status.Status().Details.Causes
	all := make([]string, 0, len(causes))
	for _, cause := range causes {
		all = append(all, string(cause.Type))
	}
	return all
}

func TestEveryWayToWriteMeetsTheGate(t *testing.T) {
	c := startCluster(t, "openshift", openshift())
	c.startReplica(t)
	a, b, next := signer(t, "a"), signer(t, "b"), signer(t, "c")
	both, all, one := bundletest.Bundle(a, b), bundletest.Bundle(a, b, next), string(b.PEM)
	broken := "\ufeff" + string(both)
	ctx := t.Context()

	if err := c.admin.Create(ctx, c.object([]byte(broken))); !apierrors.IsInvalid(err) {
		t.Fatalf("a broken bundle is created: %v", err)
	}
	if err := c.admin.Create(ctx, c.object(both), client.DryRunAll); err != nil {
		t.Fatalf("a dry run of a good bundle is refused: %v", err)
	}
	if err := c.admin.Create(ctx, c.object(both)); err != nil {
		t.Fatalf("a good bundle is refused: %v", err)
	}
	patch := func(kind types.PatchType, value any, options ...client.PatchOption) func() error {
		return func() error { return c.admin.Patch(ctx, c.object(nil), patchOf(t, kind, value), options...) }
	}
	update := func(edit func(*corev1.ConfigMap), options ...client.UpdateOption) func() error {
		return func() error {
			object := c.current(t)
			edit(object)
			return c.admin.Update(ctx, object, options...)
		}
	}
	apply := func(text string, options ...client.ApplyOption) func() error {
		return func() error {
			desired := applycorev1.ConfigMap(c.guarded.Name, c.guarded.Namespace).WithData(map[string]string{c.guarded.Key: text})
			return c.admin.Apply(ctx, desired, append(options, client.ForceOwnership, client.FieldOwner("test"))...)
		}
	}
	setData := func(text string) func(*corev1.ConfigMap) {
		return func(o *corev1.ConfigMap) { o.Data[c.guarded.Key] = text }
	}
	path := "/data/ca-bundle.crt"
	for _, refused := range []struct {
		name string
		do   func() error
		code bundle.Code
	}{
		{"put", update(setData(broken)), bundle.BrokenPEM},
		{"put that drops a CA", update(setData(one)), bundle.DropsValidCA},
		{"put, dry run", update(setData(broken), client.DryRunAll), bundle.BrokenPEM},
		{"put without the key", update(func(o *corev1.ConfigMap) { o.Data = nil }), bundle.MissingBundle},
		{"put into binaryData with other bytes", update(func(o *corev1.ConfigMap) {
			o.Data, o.BinaryData = nil, map[string][]byte{c.guarded.Key: all}
		}), bundle.MissingBundle},
		{"put that makes it immutable", update(func(o *corev1.ConfigMap) { o.Immutable = ptr.To(true) }), bundle.Immutable},
		{"put with an allowance that is malformed", update(func(o *corev1.ConfigMap) {
			o.Annotations = map[string]string{bundle.AllowanceAnnotation: "the old one"}
		}), bundle.BadAllowance},
		{"merge patch", patch(types.MergePatchType, merge("data", broken)), bundle.BrokenPEM},
		{"merge patch that removes the key", patch(types.MergePatchType, merge("data", nil)), bundle.MissingBundle},
		{"merge patch, dry run", patch(types.MergePatchType, merge("data", one), client.DryRunAll), bundle.DropsValidCA},
		{"merge patch of binaryData", patch(types.MergePatchType, map[string]any{"data": nil, "binaryData": merge("", []byte(broken))[""]}), bundle.BrokenPEM},
		{"merge patch to immutable", patch(types.MergePatchType, map[string]any{"immutable": true}), bundle.Immutable},
		{"strategic merge patch", patch(types.StrategicMergePatchType, merge("data", one)), bundle.DropsValidCA},
		{"strategic merge patch that replaces data", patch(types.StrategicMergePatchType,
			map[string]any{"data": map[string]any{"$patch": "replace", "x": "y"}}), bundle.MissingBundle},
		{"JSON patch", patch(types.JSONPatchType, jsonPatch("replace", path, broken)), bundle.BrokenPEM},
		{"JSON patch that removes the key", patch(types.JSONPatchType, jsonPatch("remove", path, nil)), bundle.MissingBundle},
		{"JSON patch that removes data", patch(types.JSONPatchType, jsonPatch("remove", "/data", nil)), bundle.MissingBundle},
		{"JSON patch that moves the key", patch(types.JSONPatchType, []map[string]any{{"op": "move", "from": path, "path": "/data/x"}}), bundle.MissingBundle},
		{"server-side apply", apply(broken), bundle.BrokenPEM},
		{"server-side apply that drops a CA", apply(one), bundle.DropsValidCA},
		{"delete", func() error { return c.admin.Delete(ctx, c.object(nil)) }, bundle.Deletion},
		{"delete, dry run", func() error { return c.admin.Delete(ctx, c.object(nil), client.DryRunAll) }, bundle.Deletion},
		{"delete in the foreground, at once", func() error {
			return c.admin.Delete(ctx, c.object(nil), client.GracePeriodSeconds(0), client.PropagationPolicy(metav1.DeletePropagationForeground))
		}, bundle.Deletion},
		{"deletecollection", func() error {
			return c.admin.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(c.guarded.Namespace))
		}, bundle.Deletion},
		{"deletecollection by field", func() error {
			return c.admin.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(c.guarded.Namespace), client.MatchingFields{"metadata.name": c.guarded.Name})
		}, bundle.Deletion},
	} {
		t.Run("refused: "+refused.name, func(t *testing.T) {
			before := c.current(t)
			err := refused.do()
			if got := codesOf(err); len(got) == 0 || got[0] != string(refused.code) {
				t.Fatalf("codes %v, want %s: %v", got, refused.code, err)
			}
			if after := c.current(t); after.ResourceVersion != before.ResourceVersion {
				t.Error("the object changed")
			}
		})
	}
	label := map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}}
	for _, allowed := range []struct {
		name string
		do   func() error
	}{
		{"put that adds a CA", update(setData(string(all)))},
		{"merge patch with another order", patch(types.MergePatchType, merge("data", string(bundletest.Bundle(next, b, a))))},
		{"strategic merge patch of a label", patch(types.StrategicMergePatchType, label)},
		{"JSON patch", patch(types.JSONPatchType, jsonPatch("replace", path, "# three signers\n"+string(all)))},
		{"server-side apply", apply(string(all))},
		{"a move to binaryData without a change", update(func(o *corev1.ConfigMap) {
			o.BinaryData, o.Data = map[string][]byte{c.guarded.Key: []byte(o.Data[c.guarded.Key])}, nil
		})},
		{"a move back", update(func(o *corev1.ConfigMap) {
			o.Data, o.BinaryData = map[string]string{c.guarded.Key: string(o.BinaryData[c.guarded.Key])}, nil
		})},
		{"break-glass", update(func(o *corev1.ConfigMap) {
			o.Annotations = map[string]string{bundle.AllowanceAnnotation: bundle.Hash(a.Certificate.Raw)}
			o.Data[c.guarded.Key] = string(bundletest.Bundle(b, next))
		})},
		{"a rotation with the annotation still there", update(func(o *corev1.ConfigMap) {
			o.Data[c.guarded.Key] += string(signer(t, "d").PEM)
		})},
	} {
		t.Run("allowed: "+allowed.name, func(t *testing.T) {
			if err := allowed.do(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("warnings reach the client", func(t *testing.T) { c.seesWarnings(t) })
	t.Run("kubectl prints every cause", func(t *testing.T) { c.printsCauses(t, one) })
	t.Run("unrelated writes never reach the gate", func(t *testing.T) { c.leavesOthersAlone(t) })
	t.Run("kube-apiserver's and the namespace controller's writes never reach the gate", func(t *testing.T) { c.leavesPlatformAlone(t) })
}

// warningLog keeps warnings.
type warningLog struct {
	mu   sync.Mutex
	text []string
}

// HandleWarningHeader notes a warning.
func (w *warningLog) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

// seesWarnings adds a CA that is not yet valid.
func (c *cluster) seesWarnings(t *testing.T) {
	t.Helper()
	log := &warningLog{}
	future := bundletest.NewCA(t, bundletest.Spec{Name: "future", From: time.Now().Add(time.Hour), Until: time.Now().AddDate(1, 0, 0)})
	object := c.current(t)
	object.Data[c.guarded.Key] += string(future.PEM)
	if err := c.as(t, operator, log).Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if len(log.text) != 1 || !strings.HasPrefix(log.text[0], "NotYetValid: certificate ") {
		t.Errorf("warnings %q", log.text)
	}
}

// printsCauses runs kubectl.
func (c *cluster) printsCauses(t *testing.T, text string) {
	t.Helper()
	kubectl := filepath.Join(need.ControlPlane(t), "kubectl")
	user, err := c.env.AddUser(envtest.User{Name: "kubectl", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"immutable": true, "data": map[string]string{c.guarded.Key: text}})
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), kubectl, "--kubeconfig", file, "-n", c.guarded.Namespace, "patch", "configmap", c.guarded.Name,
		"--type=merge", "-p", string(patch))
	output, err := command.CombinedOutput()
	t.Logf("%s", output)
	for _, want := range []string{`The ConfigMap "` + c.guarded.Name + `" is invalid`, "* data[ca-bundle.crt]: DropsValidCA: certificate ", "* immutable: Immutable: "} {
		if err == nil || !bytes.Contains(output, []byte(want)) {
			t.Errorf("kubectl does not print %q", want)
		}
	}
}

// leavesOthersAlone writes ConfigMaps that are not guarded.
func (c *cluster) leavesOthersAlone(t *testing.T) {
	t.Helper()
	before := c.reviews(t)
	for _, key := range []client.ObjectKey{
		{Namespace: c.guarded.Namespace, Name: "other"}, {Namespace: "elsewhere", Name: c.guarded.Name}, {Namespace: "kube-system", Name: "other"},
	} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if err := c.admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		if err := c.admin.Patch(t.Context(), object, patchOf(t, types.MergePatchType, merge("data", "x"))); err != nil {
			t.Fatal(err)
		}
		if err := c.admin.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	generated := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.guarded.Namespace, GenerateName: c.guarded.Name + "-"}}
	if err := c.admin.Create(t.Context(), generated); err != nil {
		t.Fatal(err)
	}
	if after := c.reviews(t); after != before {
		t.Errorf("%d reviews of writes that are none of the gate's business", after-before)
	}
}

// leavesPlatformAlone acts as the cluster's own components, dry so that the object stays.
func (c *cluster) leavesPlatformAlone(t *testing.T) {
	t.Helper()
	before := c.reviews(t)
	for user, do := range map[string]func(context.Context, client.Client) error{
		"system:apiserver": func(ctx context.Context, as client.Client) error {
			return as.Patch(ctx, c.object(nil), patchOf(t, types.MergePatchType, merge("data", nil)), client.DryRunAll)
		},
		namespaceController: func(ctx context.Context, as client.Client) error {
			return as.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(c.guarded.Namespace), client.DryRunAll)
		},
	} {
		if err := do(t.Context(), c.as(t, user, nil)); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
	if after := c.reviews(t); after != before {
		t.Errorf("%d reviews of the platform's own writes", after-before)
	}
	// As a writer, the namespace controller is a user like any other.
	as := c.as(t, namespaceController, nil)
	if err := as.Patch(t.Context(), c.object(nil), patchOf(t, types.MergePatchType, merge("data", nil))); fmt.Sprint(codesOf(err)) != "[MissingBundle]" {
		t.Errorf("the namespace controller empties the bundle: %v", err)
	}
}
