package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// log is where the readiness check says why it fails.
var log = ctrllog.Log.WithName("webhook")

// The names of the certificate and its key, those of a Secret of type kubernetes.io/tls.
const (
	certificateFile = "tls.crt"
	keyFile         = "tls.key"
)

// defaultDrain is how long a server goes on after it was told to stop.
const defaultDrain = 5 * time.Second

// server is controller-runtime's webhook server, made to stop without breaking a connection that kube-apiserver keeps:
// net/http closes idle ones the moment it shuts down, and a review that is sent at that moment fails. So for a while the
// server goes on, and asks with each answer that the connection be closed (RFC 9112 section 9.6; HTTP/2 makes it a GOAWAY).
type server struct {
	ctrlwebhook.Server
	drain    time.Duration
	draining atomic.Bool
}

// NewServer returns the server for the manager's options. It reloads its certificate when the files change, accepts
// TLS 1.2 and later, refuses bodies beyond 7 MiB (twice the largest object with room to spare, controller-runtime's
// limit), and drains its connections before it stops.
func NewServer(opts Options) ctrlwebhook.Server {
	if opts.Drain == 0 {
		opts.Drain = defaultDrain
	}
	return &server{drain: opts.Drain, Server: ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host:     opts.Host,
		Port:     opts.Port,
		CertDir:  opts.CertDir,
		CertName: certificateFile,
		KeyName:  keyFile,
		TLSOpts:  []func(*tls.Config){func(c *tls.Config) { c.MinVersion = tls.VersionTLS12 }},
	})}
}

// Register serves the handler at the path.
func (s *server) Register(path string, handler http.Handler) {
	s.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	}))
}

// Start serves until ctx ends and the connections are drained.
func (s *server) Start(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		s.draining.Store(true)
		time.AfterFunc(s.drain, stop)
	})
	return s.Server.Start(serving)
}

// dialTimeout bounds one look at the server; a probe has little time.
const dialTimeout = 2 * time.Second

// served looks at what the server serves.
type served struct {
	address     string // to dial
	certificate string // file with the certificate that should be served
	clock       clock.PassiveClock
	metrics     *metrics

	mu   sync.Mutex
	told string // the fault that was logged last
}

// newServed returns the look at the server that opts describe.
func newServed(opts Options, m *metrics) *served {
	port := opts.Port
	if port == 0 {
		port = ctrlwebhook.DefaultPort
	}
	return &served{
		address:     net.JoinHostPort(opts.Host, strconv.Itoa(port)),
		certificate: filepath.Join(opts.CertDir, certificateFile),
		clock:       opts.Clock,
		metrics:     m,
	}
}

// check is a readiness check (sigs.k8s.io/controller-runtime/pkg/healthz). It fails when the server does not answer, when
// the certificate that it serves is out of its time, and when that is not the one on disk. A Ready replica with a wrong
// certificate would have every write of the guarded ConfigMap refused.
func (s *served) check(request *http.Request) error {
	err := s.look(request.Context())
	s.tell(err)
	return err
}

// tell logs a fault when it is a new one, and its end: a probe learns no more than that there is one.
func (s *served) tell(fault error) {
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	s.mu.Lock()
	changed := text != s.told
	s.told = text
	s.mu.Unlock()
	switch {
	case !changed:
	case text != "":
		log.Info("the webhook is not ready", "reason", text)
	default:
		log.Info("the webhook is ready again")
	}
}

// look returns what is wrong with what is served.
func (s *served) look(ctx context.Context) error {
	leaf, err := s.leaf(ctx)
	if err != nil {
		return err
	}
	s.metrics.expiry.Set(float64(leaf.NotAfter.Unix()))
	now := s.clock.Now()
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return fmt.Errorf("the certificate that the webhook serves is valid from %s to %s only",
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	onDisk, err := firstCertificate(s.certificate)
	if err != nil {
		return err
	}
	if !bytes.Equal(onDisk, leaf.Raw) {
		return fmt.Errorf("the certificate that the webhook serves is not the one in %s", s.certificate)
	}
	return nil
}

// leaf asks the server for its certificate.
func (s *served) leaf(ctx context.Context) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// The certificate is what is looked at here, not what is trusted.
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}} //nolint:gosec // see above
	conn, err := dialer.DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, fmt.Errorf("the webhook does not answer: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing was written
	secured, ok := conn.(*tls.Conn)
	if !ok || len(secured.ConnectionState().PeerCertificates) == 0 {
		return nil, errors.New("the webhook serves no certificate")
	}
	return secured.ConnectionState().PeerCertificates[0], nil
}

// firstCertificate returns the DER of the first certificate in a PEM file.
func firstCertificate(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the webhook's certificate: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("no certificate in %s", name)
	}
	return block.Bytes, nil
}
