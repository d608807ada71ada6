// Package monitoring_test fires each of the shipped alerts with Prometheus' own rule tester. It is a module of its own, so that
// Prometheus stays out of the product's.
package monitoring_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// rulesFile is the PrometheusRule that ships.
const rulesFile = "../../manifests/components/monitoring/rules.yaml"

// promtool builds Prometheus' tool from its module, without the service discoveries of all clouds.
func promtool(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "promtool")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "remove_all_sd", "-o", program,
		"github.com/prometheus/prometheus/cmd/promtool").CombinedOutput()
	if err != nil {
		t.Fatalf("building promtool: %v\n%s", err, out)
	}
	return program
}

// shippedRules writes the rules as Prometheus itself reads them, and returns the directory and the names of the alerts. The
// runbooks' addresses are left out: every expectation would have to repeat them.
func shippedRules(t *testing.T) (dir string, names []string) {
	t.Helper()
	data, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec struct {
			Groups []struct {
				Name  string           `json:"name"`
				Rules []map[string]any `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	for _, group := range object.Spec.Groups {
		for _, rule := range group.Rules {
			names = append(names, rule["alert"].(string))
			delete(rule["annotations"].(map[string]any), "runbook_url")
		}
	}
	out, err := yaml.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), out, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, names
}

// TestEachAlertFiresWhenItShouldAndNotOtherwise runs alerts.yaml.
func TestEachAlertFiresWhenItShouldAndNotOtherwise(t *testing.T) {
	dir, names := shippedRules(t)
	tests, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(string(tests), "alertname: "+name+"\n    exp_alerts:") {
			t.Errorf("no test fires %s", name)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "alerts.yaml"), tests, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), promtool(t), "test", "rules", "alerts.yaml")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
