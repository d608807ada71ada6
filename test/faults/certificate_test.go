package faults

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
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// certManager is the name of its process.
const certManager = "cert-manager"

// asOperator makes kubectl speak as the operator that owns the guarded ConfigMap; the group gives it its rights.
func asOperator() []string {
	return []string{"--as=system:serviceaccount:openshift-kube-apiserver-operator:kube-apiserver-operator", "--as-group=system:masters"}
}

func TestAnExpiredServingCertificateShutsTheGateAndHoldsNoDeliveryUp(t *testing.T) {
	c := start(t)
	c.settled(t, c.rotate(t))
	whole := c.neverBroken(t)
	defer whole()
	c.do(t, "stop", certManager)
	t.Cleanup(func() { c.do(t, "restart", certManager) })
	c.expireCertificate(t)
	c.reconnect(t)

	said := c.refusedFor(t, "certificate has expired")
	t.Log("an administrator is told:", said)
	c.replicas(t, "is not ready", func(pod *corev1.Pod) bool { return !ready(pod) })
	c.logged(t, "the webhook is not ready")
	t.Log("and once no replica is ready:", c.refusedFor(t, ""))

	content := c.rotate(t, asOperator()...)
	c.settled(t, content)
	held := c.warnedOf(t, dispatcher.ReasonHeld)
	c.drop(t)
	held()
	c.settled(t, content)

	c.do(t, "restart", certManager)
	c.replicas(t, "is ready", ready)
	c.judges(t)
	c.settled(t, c.rotate(t))
}

// judges waits until the gate refuses what is no bundle, for that reason.
func (c *cluster) judges(t *testing.T) {
	t.Helper()
	labtest.Eventually(t, "the gate judges again", func(ctx context.Context) error {
		_, err := c.PatchGuarded(ctx, "no bundle")
		if err == nil || !strings.Contains(err.Error(), string(bundle.NotPEM)) {
			return fmt.Errorf("what is no bundle is answered with: %w", err)
		}
		return nil
	})
}

// expireCertificate puts an expired certificate of the webhook's own CA in the place of the good one, and waits until every
// replica serves it.
func (c *cluster) expireCertificate(t *testing.T) {
	t.Helper()
	secrets := c.client.CoreV1().Secrets(lab.ManagerNamespace)
	ca, err := secrets.Get(t.Context(), "courier-webhook-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := secrets.Get(t.Context(), "courier-webhook-tls", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	certificate, key := expired(t, ca)
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = certificate, key
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(certificate)
	c.replicas(t, "serves the expired certificate", func(pod *corev1.Pod) bool {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
		conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(pod.Status.PodIP, "9443"))
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close() }()
		return bytes.Equal(conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw, block.Bytes)
	})
}

// expired returns a certificate for the webhook's Service that ended an hour ago, signed with the CA in the Secret, and its key.
func expired(t *testing.T, ca *corev1.Secret) (certificate, key []byte) {
	t.Helper()
	authority, err := tls.X509KeyPair(ca.Data[corev1.TLSCertKey], ca.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	name := "courier-webhook." + lab.ManagerNamespace + ".svc"
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, private.Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, bytes []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", pkcs8)
}

// reconnect makes API servers open new connections to the webhook, as they do sooner or later: they verify a certificate only
// then. They keep connections by the CA bundle, so the same CA twice is another one to them. The CA injector, which would put
// it right, is stopped.
func (c *cluster) reconnect(t *testing.T) {
	t.Helper()
	api := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := api.Get(t.Context(), "kubelet-ca-courier", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range configuration.Webhooks {
		config := &configuration.Webhooks[i].ClientConfig
		config.CABundle = bytes.Join([][]byte{config.CABundle, config.CABundle}, []byte("\n"))
	}
	if _, err := api.Update(t.Context(), configuration, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// refusedFor waits until an administrator's write, which changes nothing that the gate would mind, is refused because the gate
// cannot be asked, for that reason, and returns what kubectl says.
func (c *cluster) refusedFor(t *testing.T, reason string) string {
	t.Helper()
	said := ""
	labtest.Eventually(t, "an administrator's write is refused", func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "annotate", "configmap", lab.GuardedName, "-n", lab.GuardedNamespace, "--overwrite",
			fmt.Sprintf("touched=%d", time.Now().UnixNano()))
		said = fmt.Sprint(err)
		if !strings.Contains(said, `failed calling webhook "everyone.gate.kubelet-ca-courier"`) || !strings.Contains(said, reason) {
			return fmt.Errorf("the answer is: %w", err)
		}
		return nil
	})
	return said[strings.Index(said, "\n")+1:]
}

// replicas waits until every replica of courier is as wanted.
func (c *cluster) replicas(t *testing.T, what string, wanted func(*corev1.Pod) bool) {
	t.Helper()
	selector := labels.SelectorFromSet(labels.Set{"app.kubernetes.io/component": "courier"}).String()
	labtest.Eventually(t, "every replica "+what, func(ctx context.Context) error {
		pods, err := c.client.CoreV1().Pods(lab.ManagerNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		if len(pods.Items) == 0 {
			return errors.New("there is none")
		}
		for i := range pods.Items {
			if !wanted(&pods.Items[i]) {
				return errors.New("not so " + pods.Items[i].Name)
			}
		}
		return nil
	})
}

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// logged waits until a replica of courier has logged the text.
func (c *cluster) logged(t *testing.T, text string) {
	t.Helper()
	labtest.Eventually(t, "courier logs it", func(ctx context.Context) error {
		out, err := c.Kubectl(ctx, "logs", "-n", lab.ManagerNamespace, "-l", "app.kubernetes.io/component=courier", "--tail=-1")
		if err == nil && !strings.Contains(out, text) {
			err = errors.New("it does not say: " + text)
		}
		return err
	})
}

// drop lets the operator write a bundle without the newest signer.
func (c *cluster) drop(t *testing.T) {
	t.Helper()
	text := labtest.Must[string](t)(c.Bundle(t.Context(), published[:len(published)-1]...))
	if _, err := c.PatchGuarded(t.Context(), text, asOperator()...); err != nil {
		t.Fatalf("the operator's write is refused: %v", err)
	}
}
