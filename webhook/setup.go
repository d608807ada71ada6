package webhook

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Path is where the API server sends reviews.
const Path = "/validate"

// Options configure the gate and its server.
type Options struct {
	// Guarded returns the guarded bundle as configured at the moment. Required.
	Guarded func() Ref
	// Host is the address that the server listens on; empty means all.
	Host string
	// Port is the port that the server listens on; 0 means 9443.
	Port int
	// CertDir holds tls.crt and tls.key. Required.
	CertDir string
	// Drain is how long the server goes on after it was told to stop; 5 seconds unless set.
	Drain time.Duration
	// Clock is the real one unless set.
	Clock clock.PassiveClock
	// Registry takes the metrics; controller-runtime's unless set.
	Registry prometheus.Registerer
}

// SetupWithManager registers the gate at [Path] of the manager's webhook server, which must be [NewServer]'s with the same
// options, and adds the readiness check "webhook".
func SetupWithManager(mgr ctrl.Manager, opts Options) error {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Registry == nil {
		opts.Registry = ctrlmetrics.Registry
	}
	m, err := newMetrics(opts.Registry)
	if err != nil {
		return fmt.Errorf("registering the gate's metrics: %w", err)
	}
	g := &gate{guarded: opts.Guarded, clock: opts.Clock, metrics: m}
	mgr.GetWebhookServer().Register(Path, g.handler(mgr.GetScheme()))
	if err := mgr.AddReadyzCheck("webhook", newServed(opts, m).check); err != nil {
		return fmt.Errorf("adding the webhook's readiness check: %w", err)
	}
	return nil
}

// handler serves reviews. As long as nothing is guarded, because no configuration was read yet, it answers none: then the
// failure policies decide, which a refusal would override.
func (g *gate) handler(scheme *runtime.Scheme) http.Handler {
	reviews := admission.WithValidator[*corev1.ConfigMap](scheme, g)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.guarded() == (Ref{}) {
			http.Error(w, "no configuration yet", http.StatusServiceUnavailable)
			return
		}
		reviews.ServeHTTP(w, r)
	})
}
