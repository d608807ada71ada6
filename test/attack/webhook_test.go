package attack

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"kubelet-ca-courier/bundle/bundletest"
	"kubelet-ca-courier/webhook"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	m.Run()
}

// registrar is as much of a manager as the webhook needs to register itself.
type registrar struct {
	ctrl.Manager
	server ctrlwebhook.Server
}

func (r registrar) GetWebhookServer() ctrlwebhook.Server         { return r.server }
func (r registrar) GetScheme() *runtime.Scheme                   { return clientgoscheme.Scheme }
func (r registrar) AddReadyzCheck(string, healthz.Checker) error { return nil }

// newServer is the real server with the real gate.
func newServer(t testing.TB, port int) ctrlwebhook.Server {
	t.Helper()
	opts := webhook.Options{
		Guarded: func() webhook.Ref { return webhook.Ref{Namespace: "n", Name: "c", Key: "ca"} },
		Host:    "127.0.0.1", Port: port, CertDir: servingCertificate(t), Registry: prometheus.NewRegistry(),
	}
	server := webhook.NewServer(opts)
	if err := webhook.SetupWithManager(registrar{server: server}, opts); err != nil {
		t.Fatal(err)
	}
	return server
}

func servingCertificate(t testing.TB) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// answer is what a handler wrote.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

// review asks for the update of the guarded ConfigMap from one bundle to another.
func review(old, changed []byte) []byte {
	object := func(text []byte) string {
		quoted, _ := json.Marshal(string(text)) // a string always is JSON
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"n"},"data":{"ca":%s}}`, quoted)
	}
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE",`+
		`"kind":{"version":"v1","kind":"ConfigMap"},"resource":{"version":"v1","resource":"configmaps"},"name":"c","namespace":"n",`+
		`"userInfo":{"username":"a"},"oldObject":%s,"object":%s}}`, object(old), object(changed))
}

// FuzzTheWebhookNeverAllowsByMistake sends anything at all to the port: it answers or refuses, and what it cannot read it
// never allows.
func FuzzTheWebhookNeverAllowsByMistake(f *testing.F) {
	good, other := bundletest.Named(f, "good"), bundletest.Named(f, "other")
	whole := review(bundletest.Bundle(good, other), good.PEM)
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	for _, edit := range [][2]string{
		{`"UPDATE"`, `"CONNECT"`}, {`"UPDATE"`, `""`}, {`"ConfigMap"`, `"Secret"`}, {`"request":`, `"Request":`}, {`"object":`, `"objekt":`},
		{`"oldObject":`, `"old":`}, {`"data"`, `"binaryData"`}, {`"uid":"u"`, `"uid":[]`}, {`admission.k8s.io/v1`, `admission.k8s.io/v1beta1`},
	} {
		f.Add([]byte(strings.Replace(string(whole), edit[0], edit[1], 1)))
	}
	f.Add([]byte("null"))
	f.Add([]byte(strings.Repeat(`{"request":`, 9000)))
	mux := newServer(f, 1).WebhookMux()
	f.Fuzz(func(t *testing.T, body []byte) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, webhook.Path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		got := &answer{header: http.Header{}}
		mux.ServeHTTP(got, request)
		var out admissionv1.AdmissionReview
		if err := json.Unmarshal(got.body.Bytes(), &out); err != nil || out.Response == nil {
			t.Fatalf("no review in the answer %q: %v", got.body.String(), err)
		}
		var in admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &in); out.Response.Allowed && (err != nil || in.Request == nil) {
			t.Fatalf("allowed what is no review: %q", body)
		}
	})
}

// serve runs the server on a port of its own and returns its URL.
func serve(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	server := newServer(t, address.Port)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for {
		conn, err := net.Dial("tcp", address.String())
		if err == nil {
			_ = conn.Close() // it was only a look
			return "https://" + address.String() + webhook.Path
		}
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// post sends a body with the given length.
func post(t *testing.T, url string, body io.Reader, length int64) (*admissionv1.AdmissionResponse, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	request.ContentLength = length
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the test's own server
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(response.Body)
	var out admissionv1.AdmissionReview
	if err := errors.Join(err, response.Body.Close(), json.Unmarshal(text, &out)); err != nil {
		return nil, fmt.Errorf("%w: %.200s", err, text)
	}
	return out.Response, nil
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

func TestABodyWithoutAnEndIsRefusedAndTheNextReviewAnswered(t *testing.T) {
	url := serve(t)
	if response, err := post(t, url, endless{}, -1); err == nil && response.Allowed {
		t.Error("an endless body is allowed")
	}
	good := bundletest.Named(t, "good")
	if response, err := post(t, url, bytes.NewReader(review(good.PEM, good.PEM)), -1); err != nil || !response.Allowed {
		t.Errorf("the next review: %v, %v", response, err)
	}
}

// slow is how many connections stall.
const slow = 100

func TestStalledConnectionsKeepNoReviewWaiting(t *testing.T) {
	url := serve(t)
	address := strings.TrimSuffix(strings.TrimPrefix(url, "https://"), webhook.Path)
	for i := range slow {
		var conn net.Conn
		var err error
		if i%2 == 0 {
			conn, err = net.Dial("tcp", address) // never begins its handshake
		} else {
			conn, err = tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the test's own server
			if err == nil {
				_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\nContent-Type: application/json\r\n\r\n{", webhook.Path)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }() // so that the server can stop
	}
	good := bundletest.Named(t, "good")
	if response, err := post(t, url, bytes.NewReader(review(good.PEM, nil)), -1); err != nil || response.Allowed {
		t.Errorf("a bundle is emptied while others stall: %v, %v", response, err)
	}
}
