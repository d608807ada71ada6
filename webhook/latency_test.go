package webhook

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kubelet-ca-courier/bundle/bundletest"
)

// BenchmarkRoundTrip compares, in turn and in one run, reviews of a rotation with answers of a handler that looks at
// nothing, over TLS and one server: on a connection that is kept, as kube-apiserver keeps it, and on a new one each time.
func BenchmarkRoundTrip(b *testing.B) {
	s := startServer(b, map[string]http.Handler{"/allow": &admission.Webhook{Handler: admission.HandlerFunc(
		func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })}})
	first, second := bundletest.Named(b, "first"), bundletest.Named(b, "second")
	body := reviewBody(b, request(b, configMap(first.PEM), configMap(bundletest.Bundle(first, second)), "admin"))
	for name, fresh := range map[string]bool{"kept": false, "new": true} {
		b.Run(name, func(b *testing.B) {
			took := map[string][]time.Duration{}
			for b.Loop() {
				for _, path := range []string{Path, "/allow"} {
					if fresh {
						s.client.CloseIdleConnections()
					}
					start := time.Now()
					if _, text := s.post(b, path, body); !strings.Contains(text, `"allowed":true`) {
						b.Fatalf("answered with %s", text)
					}
					took[path] = append(took[path], time.Since(start))
				}
			}
			for name, quantile := range map[string]float64{"p50-ratio": 0.50, "p99-ratio": 0.99} {
				b.ReportMetric(quantileOf(took[Path], quantile)/quantileOf(took["/allow"], quantile), name)
			}
		})
	}
}

// quantileOf is a quantile of the sample.
func quantileOf(sample []time.Duration, quantile float64) float64 {
	sorted := slices.Sorted(slices.Values(sample))
	return float64(sorted[int(quantile*float64(len(sorted)-1))])
}
