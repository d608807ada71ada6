package gate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"kubelet-ca-courier/test/need"
	"kubelet-ca-courier/webhook"
)

// Users with a part of their own in the shipped configuration.
const (
	operator            = "system:serviceaccount:openshift-kube-apiserver-operator:kube-apiserver-operator"
	recovery            = "system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client"
	namespaceController = "system:serviceaccount:kube-system:namespace-controller"
)

// patience is how long a condition may take on a machine that is busy with something else.
const patience = 5 * time.Minute

// cluster is a real API server with the shipped webhook configuration of an overlay, and a load balancer where the
// webhook's Service points.
type cluster struct {
	env      *envtest.Environment
	config   *rest.Config
	admin    client.Client
	balancer *balancer
	guarded  webhook.Ref
	certs    string // directory with the serving certificate
	caBundle []byte // that it is verified with
	registry *prometheus.Registry
	hooks    map[string]http.Handler // served beside the gate
}

// startCluster starts the API server and applies the overlay's webhook configuration as it is.
func startCluster(t *testing.T, overlay string, guarded webhook.Ref) *cluster {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	env := &envtest.Environment{
		BinaryAssetsDirectory: need.ControlPlane(t), ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
	}
	env.ControlPlane.GetAPIServer().CertDir = t.TempDir() // kept when it restarts
	config, err := env.Start()
	if err != nil {
		t.Fatalf("starting the API server: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	config.QPS = -1
	c := &cluster{env: env, config: config, guarded: guarded, certs: t.TempDir(), registry: prometheus.NewRegistry(),
		balancer: startBalancer(t), hooks: map[string]http.Handler{}}
	c.admin = c.as(t, "", nil)
	for _, namespace := range []string{"kubelet-ca-courier-system", guarded.Namespace, "elsewhere"} {
		err := c.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	// There is no kube-proxy: a Service that names another address stands in for the shipped one.
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kubelet-ca-courier-system", Name: "courier-webhook"}}
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: c.balancer.host,
		Ports: []corev1.ServicePort{{Name: "webhook", Port: 9443}}}
	if err := c.admin.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	c.caBundle = writeServingCertificate(t, c.certs)
	c.applyWebhook(t, overlay)
	return c
}

// applyWebhook applies the overlay's ValidatingWebhookConfiguration. The CA bundle is what cert-manager would fill in.
func (c *cluster) applyWebhook(t *testing.T, overlay string) {
	t.Helper()
	configuration := shippedWebhook(t, overlay)
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].ClientConfig.CABundle = c.caBundle
	}
	if err := c.admin.Create(t.Context(), configuration, client.FieldValidation("Strict")); err != nil {
		t.Fatalf("creating the webhook configuration: %v", err)
	}
}

// shippedWebhook renders the overlay as kubectl does, and picks its webhook configuration.
func shippedWebhook(t *testing.T, overlay string) *admissionregistrationv1.ValidatingWebhookConfiguration {
	t.Helper()
	dir := filepath.Join("../../manifests/overlays", overlay)
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("rendering %s: %v", dir, err)
	}
	text, err := rendered.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			t.Fatalf("%s has no webhook configuration", overlay)
		}
		if err != nil {
			t.Fatal(err)
		}
		configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if bytes.Contains(document, []byte("kind: ValidatingWebhookConfiguration")) {
			if err := yaml.UnmarshalStrict(document, configuration); err != nil {
				t.Fatal(err)
			}
			return configuration
		}
	}
}

// as returns a client that speaks as the user with an administrator's rights, and hands warnings to warn.
func (c *cluster) as(t *testing.T, user string, warn rest.WarningHandler) client.Client {
	t.Helper()
	config := rest.CopyConfig(c.config)
	config.WarningHandler = rest.NoWarnings{}
	if warn != nil {
		config.WarningHandler = warn
	}
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters", "system:authenticated"}}
	}
	made, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// replica is a manager with the gate, in this process.
type replica struct {
	address string // of the webhook
	health  string // URL of the readiness check
	stop    func() error
}

// startReplica starts one and sends it traffic once it is Ready.
func (c *cluster) startReplica(t *testing.T) *replica {
	t.Helper()
	host := "127.0.0.1"
	opts := webhook.Options{Guarded: func() webhook.Ref { return c.guarded }, Host: host, Port: freePort(t), CertDir: c.certs, Registry: c.registry}
	healthAddress := net.JoinHostPort(host, strconv.Itoa(freePort(t)))
	server := webhook.NewServer(opts)
	mgr, err := ctrl.NewManager(c.config, ctrl.Options{
		Scheme: scheme.Scheme, WebhookServer: server, HealthProbeBindAddress: healthAddress, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := webhook.SetupWithManager(mgr, opts); err != nil {
		t.Fatal(err)
	}
	for path, handler := range c.hooks {
		server.Register(path, handler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	r := &replica{address: net.JoinHostPort(host, strconv.Itoa(opts.Port)), health: "http://" + healthAddress + "/readyz"}
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("a replica ended with %v", err)
		}
	})
	eventually(t, func() error { return get(r.health) })
	c.balancer.add(r.address)
	return r
}

// retire takes a replica out of service as a rolling update does: first no new connections, then the end.
func (c *cluster) retire(t *testing.T, r *replica) {
	t.Helper()
	c.balancer.remove(r.address)
	if err := r.stop(); err != nil {
		t.Errorf("a replica ended with %v", err)
	}
}

// get fails unless the answer is 200.
func get(url string) error {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return nil
}

// eventually waits until the condition holds.
func eventually(t testing.TB, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still: %v", err)
		}
		time.Sleep(50 * time.Millisecond) // between two looks at a condition
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

// reviews is how many reviews reached the gate, of whatever verdict.
func (c *cluster) reviews(t *testing.T) int {
	t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, family := range families {
		if family.GetName() != "courier_admission_reviews_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			total += int(metric.GetCounter().GetValue())
		}
	}
	return total
}

// balancer forwards connections to the addresses in turn, as a Service does.
type balancer struct {
	host     string
	mu       sync.Mutex
	backends []string
	next     int
}

// startBalancer listens where a Service of the name can lead: at port 9443 of a loopback address that nobody uses.
func startBalancer(t *testing.T) *balancer {
	t.Helper()
	b := &balancer{}
	for i := range 250 {
		b.host = fmt.Sprintf("127.77.%d.%d", os.Getpid()%250, i+1)
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(b.host, "9443"))
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = listener.Close() })
		go b.serve(listener)
		return b
	}
	t.Fatal("no loopback address has port 9443 free")
	return nil
}

// serve accepts connections until the listener is closed.
func (b *balancer) serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go b.forward(conn)
	}
}

// forward copies both ways until either side ends. Without a backend the connection is closed at once.
func (b *balancer) forward(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	address := b.pick()
	if address == "" {
		return
	}
	backend, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = backend.Close() }()
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(backend, conn); done <- struct{}{} }()
	go func() { _, _ = io.Copy(conn, backend); done <- struct{}{} }()
	<-done
}

func (b *balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.backends) == 0 {
		return ""
	}
	b.next++
	return b.backends[b.next%len(b.backends)]
}

func (b *balancer) add(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = append(b.backends, address)
}

func (b *balancer) remove(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = slices.DeleteFunc(b.backends, func(a string) bool { return a == address })
}

// writeServingCertificate writes a certificate for the webhook's Service into the directory and returns the CA bundle.
func writeServingCertificate(t *testing.T, dir string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "courier-webhook"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"courier-webhook.kubelet-ca-courier-system.svc"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{
		"tls.crt": text, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return text
}
