package webhook

import (
	"errors"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubelet-ca-courier/bundle"
)

// Values of the label verdict.
const (
	verdictAllow = "allow"
	verdictDeny  = "deny"
	// verdictUnrelated counts requests about another object: the webhook's configuration lets too much through.
	verdictUnrelated = "unrelated"
)

// metrics count what the gate decides; controller-runtime's own count HTTP requests only.
type metrics struct {
	reviews  *prometheus.CounterVec
	findings *prometheus.CounterVec
	expiry   prometheus.Gauge
}

// newMetrics registers the gate's metrics. Where they are there already, as in a second manager of one process, those are
// used.
func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "courier_admission_reviews_total",
			Help: "Reviews at admission, by operation, verdict (allow, deny, unrelated), kind of writer, and whether it was a dry run.",
		}, []string{"operation", "verdict", "writer", "dry_run"}),
		findings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "courier_admission_findings_total",
			Help: "Reviews at admission in which a code was given, as a reason or as a warning. Dry runs do not count.",
		}, []string{"operation", "verdict", "code", "writer"}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "courier_admission_certificate_expiry_timestamp_seconds",
			Help: "When the certificate that the webhook serves ends, in seconds since the epoch.",
		}),
	}
	var errs []error
	m.reviews = register(registry, m.reviews, &errs)
	m.findings = register(registry, m.findings, &errs)
	m.expiry = register(registry, m.expiry, &errs)
	return m, errors.Join(errs...)
}

// register registers a collector, or returns the one that is registered already.
func register[C prometheus.Collector](registry prometheus.Registerer, collector C, errs *[]error) C {
	err := registry.Register(collector)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if there, ok := already.ExistingCollector.(C); ok {
			return there
		}
	}
	if err != nil {
		*errs = append(*errs, err)
	}
	return collector
}

// reviewed counts a verdict.
func (m *metrics) reviewed(request admission.Request, v bundle.Verdict) {
	verdict := verdictDeny
	if v.Allowed {
		verdict = verdictAllow
	}
	m.count(request, verdict)
	if dryRun(request) {
		return
	}
	for _, findings := range [][]bundle.Finding{v.Reasons, v.Warnings} {
		for _, code := range distinct(findings) {
			m.findings.WithLabelValues(operation(request), verdict, string(code), string(writerOf(request.UserInfo.Username))).Inc()
		}
	}
}

// unrelated counts a request about another object.
func (m *metrics) unrelated(request admission.Request) { m.count(request, verdictUnrelated) }

// count counts a request.
func (m *metrics) count(request admission.Request, verdict string) {
	m.reviews.WithLabelValues(operation(request), verdict, string(writerOf(request.UserInfo.Username)),
		strconv.FormatBool(dryRun(request))).Inc()
}

// operation is the request's operation as a label.
func operation(request admission.Request) string { return strings.ToLower(string(request.Operation)) }

// dryRun says whether nothing will be persisted.
func dryRun(request admission.Request) bool { return request.DryRun != nil && *request.DryRun }
