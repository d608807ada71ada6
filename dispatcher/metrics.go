package dispatcher

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubelet-ca-courier/bundle"
)

// Metrics are the dispatcher's. No label ever holds the name of an object.
type Metrics struct {
	created     *prometheus.CounterVec
	ends        *prometheus.CounterVec
	seconds     prometheus.Histogram
	held        *prometheus.GaugeVec
	expiry      prometheus.Gauge
	lastSigner  prometheus.Gauge
	accepted    prometheus.Gauge
	faulty      prometheus.Gauge
	configTotal prometheus.Counter
	breakGlass  prometheus.Counter
	lastFault   string
}

// NewMetrics makes the metrics and registers them, and those that tell of the nodes whenever they are asked: how many are in
// each state, and how many lack the bundle.
func NewMetrics(registry prometheus.Registerer, counts func() map[State]int, lacking func() Lacking) (*Metrics, error) {
	m := &Metrics{
		created: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "courier_jobs_created_total", Help: "Jobs created, by the cause for which a node got one.",
		}, []string{"cause"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "courier_jobs_ended_total", Help: "Jobs that ended, by the landing's exit code, or none if it reported none.",
		}, []string{"exit_code"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "courier_delivery_seconds",
			Help:    "Time from the acceptance of a bundle, or the birth of a younger node, to its delivery to the node.",
			Buckets: []float64{1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 6 * 3600, 36 * 3600},
		}),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "courier_holds", Help: "Reasons for which something is not delivered, by their code.",
		}, []string{"code"}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "courier_delivered_soonest_expiry_timestamp_seconds",
			Help: "When the first CA of the bundle that is being delivered expires.",
		}),
		lastSigner: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "courier_guarded_last_expiry_timestamp_seconds",
			Help: "When the last CA that the guarded ConfigMap brought to the delivered bundle expires.",
		}),
		accepted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "courier_accepted_timestamp_seconds", Help: "When the bundle that is being delivered was accepted.",
		}),
		faulty: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "courier_config_invalid", Help: "1 while the configuration as it stands cannot be used.",
		}),
		configTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "courier_config_errors_total", Help: "Configurations that could not be used.",
		}),
		breakGlass: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "courier_break_glass_total", Help: "Still valid CAs that were let go by the break-glass annotation.",
		}),
	}
	for _, collector := range []prometheus.Collector{
		m.created, m.ends, m.seconds, m.held, m.expiry, m.lastSigner, m.accepted, m.faulty, m.configTotal, m.breakGlass,
		&nodeCollector{counts: counts, lacking: lacking},
	} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// configFault counts a fault when it is a new one.
func (m *Metrics) configFault(fault error) {
	text := ""
	if fault != nil {
		text = fault.Error()
		m.faulty.Set(1)
	} else {
		m.faulty.Set(0)
	}
	if text != "" && text != m.lastFault {
		m.configTotal.Inc()
	}
	m.lastFault = text
}

func (m *Metrics) setHolds(holds []Hold) {
	m.held.Reset()
	for _, hold := range holds {
		m.held.WithLabelValues(string(hold.Code)).Inc()
	}
}

// delivering notes what is delivered from now on.
func (m *Metrics) delivering(s Snapshot, guarded Ref) {
	parsed, _ := bundle.Parse(s.PEM)
	if ends := expiries(parsed); len(ends) > 0 {
		m.expiry.Set(float64(slices.MinFunc(ends, time.Time.Compare).Unix()))
	}
	if ends := expiries(s.contributed(guarded)); len(ends) > 0 {
		m.lastSigner.Set(float64(slices.MaxFunc(ends, time.Time.Compare).Unix()))
	}
	m.accepted.Set(float64(s.Accepted.Unix()))
}

// expiries returns when each certificate ends.
func expiries(b *bundle.Bundle) []time.Time {
	var ends []time.Time
	if b == nil {
		return nil
	}
	for _, certificate := range b.Certificates {
		ends = append(ends, certificate.X509.NotAfter)
	}
	return ends
}

// ended counts the end of a Job.
func (m *Metrics) ended(record *Record) {
	code := "none"
	if record.Exit != nil {
		code = strconv.Itoa(int(*record.Exit))
	}
	m.ends.WithLabelValues(code).Inc()
}

// delivered measures a delivery that brought something new.
func (m *Metrics) delivered(s Snapshot, n Node, record *Record) {
	since := s.Accepted
	if n.Created.After(since) {
		since = n.Created
	}
	m.seconds.Observe(max(0, record.Finished.Sub(since).Seconds()))
}

// nodeCollector counts nodes when it is asked.
type nodeCollector struct {
	counts  func() map[State]int
	lacking func() Lacking
}

// nodesDesc describes the number of nodes.
func nodesDesc() *prometheus.Desc {
	return prometheus.NewDesc("courier_nodes", "Windows nodes that are served, by where they stand.", []string{"state"}, nil)
}

// lackingDesc describes the number of nodes that lack the bundle.
func lackingDesc() *prometheus.Desc {
	return prometheus.NewDesc("courier_nodes_lacking", "Ready nodes that lack the bundle that is being delivered.", nil, nil)
}

// lackingSinceDesc describes how long they have.
func lackingSinceDesc() *prometheus.Desc {
	return prometheus.NewDesc("courier_lacking_since_timestamp_seconds",
		"Since when the node that has waited longest lacks the bundle, or 0.", nil, nil)
}

// Describe implements prometheus.Collector.
func (*nodeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- nodesDesc()
	out <- lackingDesc()
	out <- lackingSinceDesc()
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(out chan<- prometheus.Metric) {
	for state, count := range c.counts() {
		out <- prometheus.MustNewConstMetric(nodesDesc(), prometheus.GaugeValue, float64(count), string(state))
	}
	lacking, since := c.lacking(), 0.0
	if !lacking.Since.IsZero() {
		since = float64(lacking.Since.Unix())
	}
	out <- prometheus.MustNewConstMetric(lackingDesc(), prometheus.GaugeValue, float64(lacking.Nodes))
	out <- prometheus.MustNewConstMetric(lackingSinceDesc(), prometheus.GaugeValue, since)
}
