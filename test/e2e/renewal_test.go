package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// The names of what the component cert-manager makes, and where the gate listens.
const (
	servingSecret   = "courier-webhook-tls"
	authoritySecret = "courier-webhook-ca"
	gateService     = "courier-webhook"
	gateConfig      = "kubelet-ca-courier"
	gatePort        = "9443"
)

// TestRenewingTheCertificateDropsNoReview has cert-manager renew the shipped certificate in each way in which it comes about,
// while writers change the guarded ConfigMap as fast as they can: no write fails, and no handshake of an API server that
// connects anew.
func TestRenewingTheCertificateDropsNoReview(t *testing.T) {
	c := start(t)
	c.settled(t, c.publish(t), windowsNodes...)
	load, err := c.StartLoad(t.Context(), 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = load.Stop() }) // stopped below, unless the test ends before
	handshakes := c.shakeHands(t)
	reviewed, written := c.reviews(t), load.Writes()
	goOn := func() {
		target := load.Writes() + 200
		labtest.Eventually(t, "the writers go on", func(context.Context) error {
			if err := load.Err(); err != nil {
				t.Fatalf("writes failed: %v", err)
			}
			if writes := load.Writes(); writes < target {
				return fmt.Errorf("%d writes of %d", writes, target)
			}
			return nil
		})
	}

	for _, renewal := range []struct {
		name  string
		begin func()
	}{
		{"asked for, as cmctl renew does", func() { c.renew(t, servingSecret) }},
		{"its Secret is deleted", func() {
			labtest.Must[string](t)(c.Kubectl(t.Context(), "delete", "secret", servingSecret, "-n", lab.ManagerNamespace))
		}},
		{"its CA was renewed before", func() {
			before := c.secretCertificate(t, authoritySecret)
			c.renew(t, authoritySecret)
			labtest.Eventually(t, "the CA is renewed", func(context.Context) error { return c.differs(t, authoritySecret, before) })
			c.renew(t, servingSecret)
		}},
	} {
		goOn()
		before := c.secretCertificate(t, servingSecret)
		renewal.begin()
		labtest.Eventually(t, "every replica serves another certificate", func(ctx context.Context) error {
			return c.servesNew(ctx, t, before)
		})
		goOn()
		t.Logf("%s: %d writes, %d handshakes", renewal.name, load.Writes(), handshakes.Load())
	}
	if err := load.Stop(); err != nil {
		t.Errorf("writes failed: %v", err)
	}
	if got, want := c.reviews(t)-reviewed, float64(load.Writes()-written); got < want {
		t.Errorf("%.0f reviews of %.0f writes", got, want)
	}
}

// renew asks cert-manager for another certificate, as cmctl does (github.com/cert-manager/cmctl, pkg/renew).
func (c *cluster) renew(t *testing.T, name string) {
	t.Helper()
	certificates := labtest.Must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(c.config)).
		Resource(schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}).Namespace(lab.ManagerNamespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		certificate, err := certificates.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(certificate.Object, "status", "conditions")
		if err != nil {
			return err
		}
		conditions = append(conditions, map[string]any{
			"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by a test",
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339), "observedGeneration": certificate.GetGeneration(),
		})
		if err := unstructured.SetNestedSlice(certificate.Object, conditions, "status", "conditions"); err != nil {
			return err
		}
		_, err = certificates.UpdateStatus(t.Context(), certificate, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// secretCertificate returns the certificate in a Secret.
func (c *cluster) secretCertificate(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	secret := labtest.Must[*corev1.Secret](t)(c.client.CoreV1().Secrets(lab.ManagerNamespace).Get(t.Context(), name, metav1.GetOptions{}))
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		t.Fatalf("the Secret %s holds no certificate", name)
	}
	return labtest.Must[*x509.Certificate](t)(x509.ParseCertificate(block.Bytes))
}

// differs checks that a Secret holds another certificate than before.
func (c *cluster) differs(t *testing.T, name string, before *x509.Certificate) error {
	t.Helper()
	if c.secretCertificate(t, name).Equal(before) {
		return fmt.Errorf("%s holds the same certificate", name)
	}
	return nil
}

// servesNew checks that every replica of the gate serves another certificate than the one before.
func (c *cluster) servesNew(ctx context.Context, t *testing.T, before *x509.Certificate) error {
	t.Helper()
	pods, err := c.courierPods(ctx)
	if err != nil {
		return err
	}
	if len(pods) < 2 {
		return fmt.Errorf("%d replicas", len(pods))
	}
	for i := range pods {
		served, err := handshake(ctx, net.JoinHostPort(pods[i].Status.PodIP, gatePort), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		if served.Equal(before) {
			return fmt.Errorf("%s serves the same certificate", pods[i].Name)
		}
	}
	return nil
}

// handshake returns the certificate that is served at an address.
func handshake(ctx context.Context, address string, config *tls.Config) (*x509.Certificate, error) {
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}

// shakeHands connects to the gate's Service over and over while the test lasts, as an API server does that has no connection
// yet: it verifies the certificate with the CA bundle of the webhook configuration. It counts, and no handshake may fail.
func (c *cluster) shakeHands(t *testing.T) *atomic.Int64 {
	t.Helper()
	service := labtest.Must[*corev1.Service](t)(c.client.CoreV1().Services(lab.ManagerNamespace).Get(t.Context(), gateService, metav1.GetOptions{}))
	address := net.JoinHostPort(service.Spec.ClusterIP, gatePort)
	var count atomic.Int64
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if err := c.connect(context.WithoutCancel(t.Context()), address); err != nil {
				t.Errorf("after %d handshakes: %v", count.Load(), err)
				return
			}
			count.Add(1)
		}
	}()
	t.Cleanup(func() {
		close(stop)
		if <-ended; count.Load() == 0 {
			t.Error("no handshake was tried")
		}
	})
	return &count
}

// connect shakes hands once.
func (c *cluster) connect(ctx context.Context, address string) error {
	configuration, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, gateConfig, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(configuration.Webhooks[0].ClientConfig.CABundle) {
		return errors.New("the webhook configuration has no CA bundle")
	}
	_, err = handshake(ctx, address, &tls.Config{RootCAs: pool, ServerName: gateService + "." + lab.ManagerNamespace + ".svc"})
	return err
}

// reviewCount is the metric of a replica that counts reviews of changes.
var reviewCount = regexp.MustCompile(`(?m)^courier_admission_reviews_total\{[^}]*operation="update"[^}]*\} (\S+)$`)

// reviews is how many changes the replicas have reviewed.
func (c *cluster) reviews(t *testing.T) float64 {
	t.Helper()
	total := 0.0
	for _, text := range labtest.Must[[]string](t)(c.metrics(t.Context())) {
		for _, match := range reviewCount.FindAllStringSubmatch(text, -1) {
			total += labtest.Must[float64](t)(strconv.ParseFloat(match[1], 64))
		}
	}
	return total
}

// metrics returns what each replica of courier serves to Prometheus.
func (c *cluster) metrics(ctx context.Context) ([]string, error) {
	pods, err := c.courierPods(ctx)
	if err != nil {
		return nil, err
	}
	var texts []string
	for i := range pods {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+pods[i].Status.PodIP+":8080/metrics", nil)
		if err != nil {
			return nil, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return nil, err
		}
		texts = append(texts, string(text))
	}
	return texts, nil
}
