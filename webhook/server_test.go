package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"kubelet-ca-courier/bundle/bundletest"
)

// writeCertificate puts a serving certificate into the directory, both files at once as far as a reader can tell.
func writeCertificate(t testing.TB, dir string, from, until time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "courier"},
		NotBefore: from, NotAfter: until, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}, certificateFile: {Type: "CERTIFICATE", Bytes: der}} {
		temporary := filepath.Join(dir, name+".new")
		if err := os.WriteFile(temporary, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// freePort is a port that nobody listens on.
func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port
}

// serving is a server that runs.
type serving struct {
	*served
	dir    string
	clock  *clocktesting.FakePassiveClock
	client *http.Client
}

// startServer runs the gate's server until the test ends.
func startServer(t testing.TB, extra map[string]http.Handler) serving {
	t.Helper()
	dir, clock := t.TempDir(), clocktesting.NewFakePassiveClock(bundletest.At())
	writeCertificate(t, dir, bundletest.At().Add(-time.Hour), bundletest.At().Add(time.Hour))
	opts := Options{Guarded: guardedRef, Host: "127.0.0.1", Port: freePort(t), CertDir: dir, Clock: clock, Drain: time.Millisecond}
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(opts)
	g := &gate{guarded: opts.Guarded, clock: clock, metrics: m}
	server.Register(Path, g.handler(clientgoscheme.Scheme))
	for path, handler := range extra {
		server.Register(path, handler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	s := serving{served: newServed(opts, m), dir: dir, clock: clock, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16,
	}}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	eventually(t, s.ready)
	return s
}

// ready is the answer of the readiness check.
func (s serving) ready() error {
	return s.check((&http.Request{}).WithContext(context.Background()))
}

// post sends a review and returns the answer.
func (s serving) post(t testing.TB, path string, body []byte) (int, string) {
	t.Helper()
	response, err := s.client.Post("https://"+s.address+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// eventually waits until the condition holds.
func eventually(t testing.TB, condition func() error) {
	t.Helper()
	var err error
	for range 3000 {
		if err = condition(); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond) // between two looks at a condition
	}
	t.Fatalf("still: %v", err)
}

func TestTheServerTakesUpANewCertificate(t *testing.T) {
	s := startServer(t, nil)
	before, err := s.leaf(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	writeCertificate(t, s.dir, bundletest.At().Add(-time.Hour), bundletest.At().Add(2*time.Hour))
	eventually(t, func() error {
		if err := s.ready(); err != nil {
			return err
		}
		if after, err := s.leaf(t.Context()); err != nil || after.Equal(before) {
			return errors.Join(errors.New("the old certificate is served"), err)
		}
		return nil
	})
}

func TestReadinessGoesRed(t *testing.T) {
	s := startServer(t, nil)
	if err := s.ready(); err != nil {
		t.Fatalf("not ready at first: %v", err)
	}
	s.clock.SetTime(bundletest.At().Add(61 * time.Minute))
	if err := s.ready(); err == nil || !strings.Contains(err.Error(), "valid from") {
		t.Errorf("ready with an expired certificate: %v", err)
	}
	s.clock.SetTime(bundletest.At().Add(-61 * time.Minute))
	if err := s.ready(); err == nil {
		t.Error("ready with a certificate that is not yet valid")
	}
	s.clock.SetTime(bundletest.At())
	// A certificate whose key does not fit is never taken up: what is served then differs from what is on disk.
	other := t.TempDir()
	writeCertificate(t, other, bundletest.At().Add(-time.Hour), bundletest.At().Add(time.Hour))
	if err := os.Rename(filepath.Join(other, certificateFile), filepath.Join(s.dir, certificateFile)); err != nil {
		t.Fatal(err)
	}
	if err := s.ready(); err == nil || !strings.Contains(err.Error(), "is not the one in") {
		t.Errorf("ready with another certificate than the one on disk: %v", err)
	}
	if err := os.Remove(filepath.Join(s.dir, certificateFile)); err != nil {
		t.Fatal(err)
	}
	if err := s.ready(); err == nil {
		t.Error("ready without a certificate on disk")
	}
}

func TestTheReasonForNotBeingReadyIsLoggedOnce(t *testing.T) {
	var lines []string
	defer func(before logr.Logger) { log = before }(log)
	log = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	s := startServer(t, nil)
	lines = nil // of the time before it served
	for _, at := range []time.Duration{0, 61 * time.Minute, 62 * time.Minute, 0, 0} {
		s.clock.SetTime(bundletest.At().Add(at))
		_ = s.ready() // what it answers is another test's
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "is valid from") || !strings.Contains(lines[1], "ready again") {
		t.Errorf("it logs %q, want the reason and its end", lines)
	}
}

func TestTheServerDoesNotAnswer(t *testing.T) {
	s := &served{address: "127.0.0.1:1"}
	if err := s.check((&http.Request{}).WithContext(t.Context())); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("ready without a server: %v", err)
	}
}

func TestTheServerSpeaksTLS12AndLater(t *testing.T) {
	s := startServer(t, nil)
	for version, want := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}}
		conn, err := dialer.DialContext(t.Context(), "tcp", s.address)
		if (err == nil) != want {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

func TestAServerThatStopsLetsConnectionsGo(t *testing.T) {
	s, ok := NewServer(Options{CertDir: t.TempDir()}).(*server)
	if !ok {
		t.Fatal("another kind of server")
	}
	s.Register("/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for _, draining := range []bool{false, true} {
		s.draining.Store(draining)
		recorder := httptest.NewRecorder()
		s.WebhookMux().ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/", nil))
		if asks := recorder.Header().Get("Connection") == "close"; asks != draining {
			t.Errorf("draining %v, and it asks to close: %v", draining, asks)
		}
	}
}

func TestAReviewThatIsTooLargeOrNoneIsRefused(t *testing.T) {
	s := startServer(t, nil)
	for name, body := range map[string][]byte{
		"8 MiB": bytes.Repeat([]byte("x"), 8<<20), "nothing": nil, "not JSON": []byte("x"), "no review": []byte("{}"), "an array": []byte("[]"),
	} {
		if _, text := s.post(t, Path, body); strings.Contains(text, `"allowed":true`) {
			t.Errorf("%s is answered with %s", name, text)
		}
	}
	// The server is none the worse for it.
	good := reviewBody(t, request(t, nil, configMap(bundletest.Named(t, "a").PEM), "admin"))
	if _, text := s.post(t, Path, good); !strings.Contains(text, `"allowed":true`) {
		t.Errorf("a good review is answered with %s", text)
	}
}

func TestMemoryIsFlat(t *testing.T) {
	ctrllog.SetLogger(logr.Discard()) // as long as a program has set none, controller-runtime keeps every logger it hands out
	g, _ := newGate(t)
	handler := g.handler(clientgoscheme.Scheme)
	var cas []bundletest.CA
	for range 3 {
		cas = append(cas, bundletest.Named(t, "signer"))
	}
	old, text := bundletest.Bundle(cas[:2]...), bundletest.Bundle(cas...)
	bodies := [][]byte{
		reviewBody(t, request(t, configMap(old), configMap(text), "admin")),
		reviewBody(t, request(t, configMap(text), configMap(old), "admin")),
		reviewBody(t, request(t, configMap(text), nil, "admin")),
	}
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	reviews := func(n int) {
		for i := range n {
			posted, err := http.NewRequestWithContext(t.Context(), http.MethodPost, Path, bytes.NewReader(bodies[i%len(bodies)]))
			if err != nil {
				t.Fatal(err)
			}
			posted.Header.Set("Content-Type", "application/json")
			handler.ServeHTTP(discard{}, posted)
		}
	}
	reviews(1000)
	before := heap()
	reviews(100_000)
	after := heap()
	t.Logf("heap %d KiB before, %d KiB after 100,000 reviews", before>>10, after>>10)
	if after > before+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}

// discard is a ResponseWriter that keeps nothing.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
