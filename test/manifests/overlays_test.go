package manifests_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// source is a ConfigMap key that the settings name.
type source struct{ Namespace, Name, Key string }

// settings are the parts of config.yaml that other manifests repeat.
type settings struct {
	Guarded      source
	ExtraSources []source
	Mode         string
	Destination  string
	Image        string
}

// sources returns all that is delivered, the guarded ConfigMap first.
func (s settings) sources() []source { return append([]source{s.Guarded}, s.ExtraSources...) }

// readSettings returns the settings that the overlay ships.
func readSettings(t *testing.T, objects []*unstructured.Unstructured) settings {
	t.Helper()
	var s settings
	config := find[corev1.ConfigMap](t, objects, "ConfigMap", "courier-config")
	if err := yaml.Unmarshal([]byte(config.Data["config.yaml"]), &s); err != nil {
		t.Fatalf("config.yaml: %v", err)
	}
	return s
}

// TestWebhookGuardsWhatTheSettingsName holds the places together in which an overlay names the guarded ConfigMap.
func TestWebhookGuardsWhatTheSettingsName(t *testing.T) {
	for _, name := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			objects := overlay(t, name)
			guarded := readSettings(t, objects).Guarded
			config := find[admissionv1.ValidatingWebhookConfiguration](t, objects, "ValidatingWebhookConfiguration", "kubelet-ca-courier")
			for _, webhook := range config.Webhooks {
				if got := webhook.NamespaceSelector.MatchLabels[corev1.LabelMetadataName]; got != guarded.Namespace {
					t.Errorf("%s looks at the namespace %q, the settings at %q", webhook.Name, got, guarded.Namespace)
				}
				if !slices.ContainsFunc(webhook.MatchConditions, func(c admissionv1.MatchCondition) bool {
					return strings.HasSuffix(c.Expression, ".metadata.name == '"+guarded.Name+"'")
				}) {
					t.Errorf("%s has no condition on the name %q", webhook.Name, guarded.Name)
				}
			}
		})
	}
}

// TestNothingOfTheBaseIsLeftUnset finds placeholders that an overlay forgot to replace.
func TestNothingOfTheBaseIsLeftUnset(t *testing.T) {
	for _, name := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			for _, u := range overlay(t, name) {
				raw, err := u.MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				for _, left := range []string{"set-by-the-overlay", "$patch"} {
					if strings.Contains(string(raw), left) {
						t.Errorf("%s %s still says %q", u.GetKind(), u.GetName(), left)
					}
				}
			}
		})
	}
}

// TestSourcesAreReadableByNameAlone checks that the overlay's Roles let the manager read each source of the settings by its
// name, tell of the guarded one through events, and do nothing else.
func TestSourcesAreReadableByNameAlone(t *testing.T) {
	for _, name := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			objects := overlay(t, name)
			s := readSettings(t, objects)
			reading := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}}
			telling := rbacv1.PolicyRule{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}}
			want := map[string][]rbacv1.PolicyRule{}
			for _, src := range s.sources() {
				rule := *reading.DeepCopy()
				rule.ResourceNames = []string{src.Name}
				want[src.Namespace] = append(want[src.Namespace], rule)
			}
			want[s.Guarded.Namespace] = append(want[s.Guarded.Namespace], telling)
			got := map[string][]rbacv1.PolicyRule{}
			for _, u := range objects {
				if u.GetKind() != "Role" || u.GetName() != "kubelet-ca-courier-source" {
					continue
				}
				role := &rbacv1.Role{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, role); err != nil {
					t.Fatal(err)
				}
				got[role.Namespace] = append(got[role.Namespace], role.Rules...)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("the rules by namespace are %+v, want %+v", got, want)
			}
		})
	}
}

// TestDeploymentStaysUp checks what keeps the gate open through drains, upgrades and the loss of a node.
func TestDeploymentStaysUp(t *testing.T) {
	for _, name := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			objects := overlay(t, name)
			d := find[appsv1.Deployment](t, objects, "Deployment", "courier")
			pod := d.Spec.Template.Spec
			if *d.Spec.Replicas < 2 {
				t.Errorf("%d replicas, want two or more", *d.Spec.Replicas)
			}
			if d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
				t.Error("an upgrade takes a replica away before its successor is ready")
			}
			if pod.PriorityClassName != "system-cluster-critical" {
				t.Errorf("priority class %q", pod.PriorityClassName)
			}
			for _, c := range pod.Containers {
				if c.ReadinessProbe == nil || c.LivenessProbe == nil {
					t.Errorf("%s lacks a probe", c.Name)
				}
				if c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
					t.Errorf("%s lacks requests or a limit", c.Name)
				}
			}
		})
	}
}

// TestEveryObjectCarriesTheName lets an admin find, and remove, all that was installed by one label.
func TestEveryObjectCarriesTheName(t *testing.T) {
	for _, name := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			for _, u := range overlay(t, name) {
				if u.GetLabels()["app.kubernetes.io/name"] != "kubelet-ca-courier" {
					t.Errorf("%s %s/%s has no app.kubernetes.io/name", u.GetKind(), u.GetNamespace(), u.GetName())
				}
			}
		})
	}
}

// TestKustomizationOfOnesOwnAsDocumented renders what the documents propose: another registry, monitoring, a network policy.
func TestKustomizationOfOnesOwnAsDocumented(t *testing.T) {
	objects := render(t, "testdata/complete")
	kinds := map[string]int{}
	for _, u := range objects {
		kinds[u.GetKind()]++
	}
	for kind, want := range map[string]int{"ServiceMonitor": 1, "PrometheusRule": 1, "NetworkPolicy": 2} {
		if kinds[kind] != want {
			t.Errorf("there are %d of %s, want %d", kinds[kind], kind, want)
		}
	}
	image := find[appsv1.Deployment](t, objects, "Deployment", "courier").Spec.Template.Spec.Containers[0].Image
	if image != "registry.example.com/kubelet-ca-courier/manager:v1" {
		t.Errorf("the manager's image is %s", image)
	}
	if got := readSettings(t, objects).Image; got != "registry.example.com/kubelet-ca-courier/node:v1" {
		t.Errorf("the landing's image is %s", got)
	}
	dashboard := find[corev1.ConfigMap](t, objects, "ConfigMap", "courier-dashboard")
	if dashboard.Labels["grafana_dashboard"] != "1" || dashboard.Data["dashboard.json"] == "" {
		t.Error("Grafana's sidecar would not find the dashboard")
	}
}
