package manifests_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/webhook"
)

// component is the monitoring component, which has to be read without an overlay.
const component = manifestsDir + "/components/monitoring"

// ownPrefix begins the names of all of our metrics.
const ownPrefix = "courier_"

// described matches what prometheus.Desc prints.
var described = regexp.MustCompile(`fqName: "([a-z_]+)"`)

// registered returns the names of the metrics that the program registers, seen through the same calls that it makes.
func registered(t *testing.T) map[string]bool {
	t.Helper()
	options := webhook.Options{CertDir: t.TempDir(), Guarded: func() webhook.Ref { return webhook.Ref{} }}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, ctrl.Options{
		WebhookServer: webhook.NewServer(options),
		Cache:         dispatcher.CacheOptions(dispatcher.JobsNamespace),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := webhook.SetupWithManager(mgr, options); err != nil {
		t.Fatal(err)
	}
	if _, err := dispatcher.SetupWithManager(mgr, dispatcher.DefaultWhere()); err != nil {
		t.Fatal(err)
	}
	collector, ok := ctrlmetrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatal("controller-runtime's registry cannot describe itself any more")
	}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		collector.Describe(descriptions)
		close(descriptions)
	}()
	names := map[string]bool{}
	for d := range descriptions {
		names[described.FindStringSubmatch(d.String())[1]] = true
	}
	return names
}

// foreign returns the names of the metrics of others that the rules use: Prometheus' own, and kube-apiserver's as its own
// code registers them.
func foreign(t *testing.T) map[string]bool {
	t.Helper()
	admissionmetrics.Metrics.ObserveWebhookRejection(t.Context(), "w", "validating", "UPDATE", admissionmetrics.WebhookRejectionCallingWebhookError, 0)
	admissionmetrics.Metrics.ObserveWebhookFailOpen(t.Context(), "w", "validating")
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{"up": true}
	for _, family := range families {
		names[family.GetName()] = true
	}
	return names
}

// metricName matches the names of metrics in PromQL: those that have a selector, a range or a comparison behind them.
var metricName = regexp.MustCompile(`\b(up|[a-z]+(?:_[a-z]+){2,}|courier_[a-z_]+)\b`)

// notMetrics are words of PromQL, and labels, that look like metrics.
var notMetrics = []string{"calling_webhook_error"}

// used returns the metrics of an expression, histograms by their base name.
func used(expression string) []string {
	var names []string
	for _, name := range metricName.FindAllString(expression, -1) {
		name = strings.TrimSuffix(name, "_bucket")
		if !slices.Contains(notMetrics, name) && !strings.HasPrefix(name, "label_") {
			names = append(names, name)
		}
	}
	return names
}

// expressions returns every expression of the rules and the dashboard, by where it is.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, rule := range alerts(t) {
		all["alert "+rule.Alert] = rule.Expr
	}
	for _, panel := range dashboard(t).Panels {
		for _, target := range panel.Targets {
			all["panel "+panel.Title+" "+target.RefID] = target.Expr
		}
	}
	return all
}

// alert is one rule.
type alert struct {
	Alert, Expr, For string
	Labels           map[string]string
	Annotations      map[string]string
}

// alerts returns the rules that ship.
func alerts(t *testing.T) []alert {
	t.Helper()
	objects := readObjects(t, filepath.Join(component, "rules.yaml"))
	var spec struct {
		Spec struct{ Groups []struct{ Rules []alert } }
	}
	raw, err := objects[0].MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &spec); err != nil {
		t.Fatal(err)
	}
	return spec.Spec.Groups[0].Rules
}

// readObjects reads a file of manifests.
func readObjects(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, data)
}

// board is what the tests read of the dashboard.
type board struct {
	Title, UID string
	Panels     []struct {
		ID                       int
		Title, Type, Description string
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ RefID, Expr string }
	}
}

// dashboard returns the dashboard that ships.
func dashboard(t *testing.T) board {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(component, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEveryMetricThatIsUsedExists compares the rules and the dashboard with what the program registers.
func TestEveryMetricThatIsUsedExists(t *testing.T) {
	own, others := registered(t), foreign(t)
	for where, expression := range expressions(t) {
		names := used(expression)
		if len(names) == 0 {
			t.Errorf("%s uses no metric: %s", where, expression)
		}
		for _, name := range names {
			if !own[name] && !others[name] {
				t.Errorf("%s uses %s, which nothing has", where, name)
			}
		}
	}
}

// TestEveryMetricIsDocumented compares docs/metrics.md with what the program registers, both ways.
func TestEveryMetricIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `(courier_[a-z_]+)`").FindAllStringSubmatch(string(data), -1) {
		documented[match[1]] = true
	}
	for name := range registered(t) {
		if strings.HasPrefix(name, ownPrefix) && !documented[name] {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/metrics.md has %s, which does not exist", name)
	}
}

// TestEveryAlertHasARunbook looks for the page that the alert names.
func TestEveryAlertHasARunbook(t *testing.T) {
	for _, rule := range alerts(t) {
		runbook := rule.Annotations["runbook"]
		if runbook != "docs/runbooks/"+rule.Alert+".md" {
			t.Errorf("%s names the runbook %q", rule.Alert, runbook)
		}
		if _, err := os.Stat(filepath.Join("../..", runbook)); err != nil {
			t.Errorf("%s: %v", rule.Alert, err)
		}
		if rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
			t.Errorf("%s lacks a severity or a summary", rule.Alert)
		}
	}
}

// TestDashboardIsWellFormed checks what Grafana would choke on or draw badly.
func TestDashboardIsWellFormed(t *testing.T) {
	b := dashboard(t)
	if b.Title == "" || b.UID == "" || len(b.Panels) == 0 {
		t.Fatalf("the dashboard lacks a title, a uid or panels")
	}
	ids := map[int]bool{}
	for i, p := range b.Panels {
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || ids[p.ID] {
			t.Errorf("panel %d (%s) lacks a title, a description, a target or an id of its own", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %s is wider than the grid", p.Title)
		}
		for _, q := range b.Panels[:i] {
			a, o := p.GridPos, q.GridPos
			if a.X < o.X+o.W && o.X < a.X+a.W && a.Y < o.Y+o.H && o.Y < a.Y+a.H {
				t.Errorf("panels %s and %s overlap", p.Title, q.Title)
			}
		}
	}
}
