package docs_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/hack/lab"
)

// serviceCA stands in for OpenShift's service CA: it makes the serving certificate that the Service's annotation asks for, and
// puts the CA where the webhook's annotation asks for it, each time they are new. The returned function ends it.
func (a *admin) serviceCA() func() {
	ctx, cancel := context.WithCancel(a.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := a.serveOnce(ctx); err != nil && ctx.Err() == nil {
				a.t.Logf("service CA: %v", err) // what it looks for is not there yet
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// serveOnce does what the service CA does, once.
func (a *admin) serveOnce(ctx context.Context) error {
	secret, err := a.Kubectl(ctx, "get", "service", "courier-webhook", "-n", lab.ManagerNamespace, "--ignore-not-found",
		`-o=jsonpath={.metadata.annotations.service\.beta\.openshift\.io/serving-cert-secret-name}`)
	if err != nil || secret == "" {
		return err
	}
	if _, err := a.Kubectl(ctx, "get", "secret", secret, "-n", lab.ManagerNamespace); err != nil {
		certificate, key := a.servingCertificate()
		if _, err := a.Kubectl(ctx, "create", "secret", "tls", secret, "-n", lab.ManagerNamespace,
			"--cert="+certificate, "--key="+key); err != nil {
			return err
		}
	}
	bundles, err := a.Kubectl(ctx, "get", "validatingwebhookconfiguration", "kubelet-ca-courier",
		"-o=jsonpath={.webhooks[*].clientConfig.caBundle}")
	if err != nil || bundles != "" {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(a.bin, "service-ca.crt"))
	if err != nil {
		return err
	}
	var patch []string
	for i := range 2 {
		patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/webhooks/%d/clientConfig/caBundle","value":%q}`, i,
			base64.StdEncoding.EncodeToString(ca)))
	}
	_, err = a.Kubectl(ctx, "patch", "validatingwebhookconfiguration", "kubelet-ca-courier", "--type=json",
		"-p", "["+strings.Join(patch, ",")+"]")
	return err
}

// servingCertificate makes a CA and a serving certificate for the Service, once, and returns the certificate's files.
func (a *admin) servingCertificate() (certificate, key string) {
	certificate, key = filepath.Join(a.bin, "tls.crt"), filepath.Join(a.bin, "tls.key")
	if _, err := os.Stat(certificate); err == nil {
		return certificate, key
	}
	writeServingCertificate(a.t, a.bin, "courier-webhook."+lab.ManagerNamespace+".svc")
	return certificate, key
}

// writeServingCertificate writes service-ca.crt, tls.crt and tls.key into the directory.
func writeServingCertificate(t *testing.T, dir, host string) {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Error(err) // may run beside the test, where Fatal is not allowed
		}
	}
	newKey := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		check(err)
		return key
	}
	caKey, key, now := newKey(), newKey(), time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "service CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	write := func(name, kind string, der []byte) {
		check(os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	check(err)
	write("service-ca.crt", "CERTIFICATE", der)
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	check(err)
	write("tls.crt", "CERTIFICATE", der)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	check(err)
	write("tls.key", "PRIVATE KEY", der)
}
