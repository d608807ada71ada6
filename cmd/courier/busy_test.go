package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAnAPIServerThatIsBusyIsNoReasonToGiveUp(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	for _, code := range []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked++
			w.Header().Set("Retry-After", "1")
			http.Error(w, "come back later", code)
		}))
		t.Cleanup(server.Close)
		var stdout, stderr bytes.Buffer
		run(t.Context(), []string{"--kubeconfig=" + kubeconfig(t, server.URL), "--cert-dir=/nonexistent"}, &stdout, &stderr)
		// The next thing that courier looks at is the certificate.
		if said := stderr.String(); !strings.Contains(said, "the API server is busy") || !strings.Contains(said, "error: read the webhook's certificate") {
			t.Errorf("%d: %s", code, said)
		}
		if asked != 1 {
			t.Errorf("%d: it was asked %d times before anything else", code, asked)
		}
	}
}

func TestAnAPIServerThatTurnsCourierAwayEndsIt(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "who are you", http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"--kubeconfig=" + kubeconfig(t, server.URL), "--cert-dir=/nonexistent"}, &stdout, &stderr)
	if said := stderr.String(); code != 1 || !strings.Contains(said, "does not answer") || !strings.Contains(said, "hint: ") {
		t.Errorf("exit code %d: %s", code, said)
	}
}
