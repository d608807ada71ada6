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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	own := prometheus.NewRegistry()
	options := webhook.Options{CertDir: t.TempDir(), Guarded: func() webhook.Ref { return webhook.Ref{} }, Registry: own}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, ctrl.Options{WebhookServer: webhook.NewServer(options)})
	if err != nil {
		t.Fatal(err)
	}
	if err := webhook.SetupWithManager(mgr, options); err != nil {
		t.Fatal(err)
	}
	if _, err := dispatcher.NewMetrics(own, func() map[dispatcher.State]int { return nil }, nil); err != nil {
		t.Fatal(err)
	}
	runtimes, ok := ctrlmetrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatal("controller-runtime's registry cannot describe itself any more")
	}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		own.Describe(descriptions)
		runtimes.Describe(descriptions)
		close(descriptions)
	}()
	names := map[string]bool{}
	for d := range descriptions {
		if match := described.FindStringSubmatch(d.String()); match != nil {
			names[match[1]] = true
		}
	}
	return names
}

// apiServerMetrics are those of kube-apiserver's that the rules use.
var apiServerMetrics = []string{"apiserver_admission_webhook_rejection_count", "apiserver_admission_webhook_fail_open_count"}

// TestMetricsOfTheAPIServerAreWhatTheRulesSay lets a real API server fail to reach the gate, for an ordinary user and for a
// recovery writer, and looks at what it counts.
func TestMetricsOfTheAPIServerAreWhatTheRulesSay(t *testing.T) {
	s := startWith(t, "openshift")
	guarded := func() *corev1.ConfigMap {
		g := readSettings(t, s.objects).Guarded
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: g.Name}}
	}
	eventually(t, func() error {
		return mustDeny(s.as(t, editor, "system:masters").Create(t.Context(), guarded(), client.DryRunAll), "failed calling webhook")
	})
	operator := s.as(t, "system:serviceaccount:openshift-kube-apiserver-operator:kube-apiserver-operator", "system:masters")
	if err := operator.Create(t.Context(), guarded(), client.DryRunAll); err != nil {
		t.Errorf("the operator is held up by a gate that is away: %v", err)
	}
	clientset, err := kubernetes.NewForConfig(rest.CopyConfig(s.config))
	if err != nil {
		t.Fatal(err)
	}
	text, err := clientset.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		apiServerMetrics[0] + `{error_type="calling_webhook_error",name="everyone.gate.kubelet-ca-courier"`,
		apiServerMetrics[1] + `{name="recovery.gate.kubelet-ca-courier"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the API server does not count %s", want)
		}
	}
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
	return alertsOf(t, readObjects(t, filepath.Join(component, "rules.yaml")))
}

// alertsOf returns the rules among the objects.
func alertsOf(t *testing.T, objects []*unstructured.Unstructured) []alert {
	t.Helper()
	var all []alert
	for _, o := range objects {
		if o.GetKind() != "PrometheusRule" {
			continue
		}
		var rules struct {
			Spec struct{ Groups []struct{ Rules []alert } }
		}
		raw, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &rules); err != nil {
			t.Fatal(err)
		}
		for _, group := range rules.Spec.Groups {
			all = append(all, group.Rules...)
		}
	}
	if len(all) == 0 {
		t.Fatal("there are no alerts")
	}
	return all
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
	own, others := registered(t), append([]string{"up"}, apiServerMetrics...)
	for where, expression := range expressions(t) {
		names := used(expression)
		if len(names) == 0 {
			t.Errorf("%s uses no metric: %s", where, expression)
		}
		for _, name := range names {
			if !own[name] && !slices.Contains(others, name) {
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

// runbookLink is the annotation from which tools make a link.
const runbookLink = "runbook_url"

// TestEveryAlertHasARunbook looks for the page that the alert names.
func TestEveryAlertHasARunbook(t *testing.T) {
	for _, rule := range alerts(t) {
		runbook := rule.Annotations[runbookLink]
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

// TestRunbooksBecomeLinks adds to a kustomization what docs/metrics.md gives for that.
func TestRunbooksBecomeLinks(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	addition := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindSubmatch(text)
	where := regexp.MustCompile(`runbooks: (https://\S+)/docs\n`).FindSubmatch(text)
	if addition == nil || where == nil {
		t.Fatal("docs/metrics.md does not say how the runbooks become links")
	}
	dir := t.TempDir()
	manifests, err := filepath.Abs(manifestsDir)
	if err != nil {
		t.Fatal(err)
	}
	if manifests, err = filepath.Rel(dir, manifests); err != nil {
		t.Fatal(err)
	}
	kustomization := "resources:\n- " + manifests + "/overlays/openshift\ncomponents:\n- " + manifests + "/components/monitoring\n" + string(addition[1])
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, rule := range alertsOf(t, render(t, dir)) {
		if got, want := rule.Annotations[runbookLink], string(where[1])+"/docs/runbooks/"+rule.Alert+".md"; got != want {
			t.Errorf("the runbook of %s is %s, want %s", rule.Alert, got, want)
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
