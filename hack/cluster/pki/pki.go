// Package pki makes the certificates of a local cluster: a few authorities and what they sign, on disk as PEM.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"kubelet-ca-courier/hack/cluster/layout"
)

// validity is that of certificates which state none: long enough for any test, short enough to be no treasure.
const validity = 30 * 24 * time.Hour

// Authority is a CA with its key, at PATH.crt and PATH.key.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Request says what a certificate is to hold.
type Request struct {
	CommonName    string
	Organizations []string
	// Hosts are DNS names and IP addresses; a certificate with hosts is for servers, and every one is for clients.
	Hosts []string
}

// NewAuthority makes a self-signed CA and writes it to path.crt and path.key. A zero lifetime means the usual one.
func NewAuthority(path, commonName string, lifetime time.Duration) (*Authority, error) {
	if lifetime == 0 {
		lifetime = validity
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             time.Now().Add(-time.Minute),
		NotAfter:              time.Now().Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if err := write(path, template, template, key, key); err != nil {
		return nil, err
	}
	return LoadAuthority(path)
}

// LoadAuthority reads what NewAuthority wrote.
func LoadAuthority(path string) (*Authority, error) {
	certBlock, err := readBlock(path + ".crt")
	if err != nil {
		return nil, err
	}
	keyBlock, err := readBlock(path + ".key")
	if err != nil {
		return nil, err
	}
	a := &Authority{}
	if a.cert, err = x509.ParseCertificate(certBlock.Bytes); err != nil {
		return nil, fmt.Errorf("%s.crt: %w", path, err)
	}
	if a.key, err = x509.ParseECPrivateKey(keyBlock.Bytes); err != nil {
		return nil, fmt.Errorf("%s.key: %w", path, err)
	}
	return a, nil
}

// EnsureAuthority loads the CA, or makes it where there is none.
func EnsureAuthority(path, commonName string) (*Authority, error) {
	a, err := LoadAuthority(path)
	if errors.Is(err, fs.ErrNotExist) {
		return NewAuthority(path, commonName, 0)
	}
	return a, err
}

// Certificate is the CA's own certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// PEM returns the CA's certificate as PEM.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Issue signs a certificate and writes it, with a new key, to path.crt and path.key.
func (a *Authority) Issue(path string, r Request) error {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: r.CommonName, Organization: r.Organizations},
		NotBefore:   time.Now().Add(-time.Minute),
		NotAfter:    time.Now().Add(validity),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if a.cert.NotAfter.Before(template.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(r.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return write(path, template, a.cert, key, a.key)
}

// write signs the template with the parent's key. The key is replaced before the certificate: kube-apiserver reads both
// when either changes, and keeps the pair it has while they do not match.
func write(path string, template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		return fmt.Errorf("sign %s: %w", template.Subject.CommonName, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	if err := layout.WriteFile(path+".key", keyPEM, 0o600); err != nil {
		return err
	}
	return layout.WriteFile(path+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func readBlock(path string) (*pem.Block, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s: holds no PEM", path)
	}
	return block, nil
}
