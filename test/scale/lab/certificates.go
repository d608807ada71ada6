package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA returns a new self-signed CA in PEM, valid for a year from an hour ago.
func CA(t testing.TB, name string) string {
	t.Helper()
	_, certificate := selfSigned(t, &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotAfter:              time.Now().AddDate(1, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	return certificate
}

// ServingDir returns a directory with a tls.crt and tls.key for loopback.
func (l *Lab) ServingDir(t testing.TB) string {
	t.Helper()
	key, certificate := selfSigned(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "courier-webhook"},
		NotAfter:    time.Now().AddDate(0, 0, 1),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	dir := filepath.Join(l.Dir, "tls")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l.write(t, "tls/tls.crt", certificate)
	l.write(t, "tls/tls.key", key)
	return dir
}

func selfSigned(t testing.TB, template *x509.Certificate) (key, certificate string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("generating a key: %v", err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatalf("choosing a serial number: %v", err)
	}
	template.SerialNumber, template.NotBefore = serial, time.Now().Add(-time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatalf("signing a certificate: %v", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatalf("encoding a key: %v", err)
	}
	block := func(kind string, bytes []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
	}
	return block("PRIVATE KEY", pkcs8), block("CERTIFICATE", der)
}
