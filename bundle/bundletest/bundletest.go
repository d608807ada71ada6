// Package bundletest makes certificates and bundles for tests. It writes certificates field by field, so that it can also
// make those that crypto/x509 would never make: of version 1, without basic constraints, with keys of any size.
package bundletest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

// At is the moment around which certificates are valid unless they say otherwise; that of the cases in testdata.
func At() time.Time { return time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC) }

// Day is a day of certificate time.
const Day = 24 * time.Hour

// Spec says what a certificate is like. The zero value of a field means the ordinary: a CA that may sign, valid for a year
// around [At], with a P-256 key of its own.
type Spec struct {
	// Name is the common name of the subject; RawSubject takes its place where it is set.
	Name       string
	RawSubject []byte
	// Version is 3 unless set. Extensions are left out before version 3.
	Version int
	// From and Until bound the validity.
	From, Until time.Time
	// Key is the certificate's key; PublicKey, the DER of a SubjectPublicKeyInfo, takes its place where it is set.
	Key       crypto.Signer
	PublicKey []byte
	// Signature is the algorithm that the certificate claims to be signed with: ECDSA with SHA-256 unless set. The signature
	// itself is never good; nobody verifies that of a trust anchor.
	Signature asn1.ObjectIdentifier
	// Extensions are those of the certificate. Nil means [CAExtensions].
	Extensions []pkix.Extension
}

// CA is a certificate with its key.
type CA struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
	// PEM is the certificate as a block.
	PEM []byte
}

// NewKey makes a P-256 key.
func NewKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("making a key: %v", err)
	}
	return key
}

// NewCA makes the certificate that spec describes.
func NewCA(t testing.TB, spec Spec) CA {
	t.Helper()
	if spec.Key == nil {
		spec.Key = NewKey(t)
	}
	der := spec.DER(t)
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("parsing the certificate just made: %v", err)
	}
	return CA{Certificate: certificate, Key: spec.Key, PEM: Block(der)}
}

// Named makes an ordinary CA.
func Named(t testing.TB, name string) CA {
	t.Helper()
	return NewCA(t, Spec{Name: name})
}

// Block writes DER as a CERTIFICATE block.
func Block(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Bundle joins the CAs' blocks.
func Bundle(cas ...CA) []byte {
	var text []byte
	for _, ca := range cas {
		text = append(text, ca.PEM...)
	}
	return text
}

// tbsCertificate is that of RFC 5280 section 4.1.
type tbsCertificate struct {
	Version      int `asn1:"optional,explicit,default:0,tag:0"`
	SerialNumber *big.Int
	Signature    pkix.AlgorithmIdentifier
	Issuer       asn1.RawValue
	Validity     struct{ NotBefore, NotAfter time.Time }
	Subject      asn1.RawValue
	PublicKey    asn1.RawValue
	Extensions   []pkix.Extension `asn1:"omitempty,optional,explicit,tag:3"`
}

// certificate is that of RFC 5280 section 4.1.
type certificate struct {
	TBS       tbsCertificate
	Algorithm pkix.AlgorithmIdentifier
	Signature asn1.BitString
}

// DER writes the certificate.
func (s Spec) DER(t testing.TB) []byte {
	t.Helper()
	s = s.completed(t)
	algorithm := pkix.AlgorithmIdentifier{Algorithm: s.Signature}
	tbs := tbsCertificate{
		Version:      s.Version - 1,
		SerialNumber: serial(t),
		Signature:    algorithm,
		Issuer:       asn1.RawValue{FullBytes: s.RawSubject},
		Subject:      asn1.RawValue{FullBytes: s.RawSubject},
		PublicKey:    asn1.RawValue{FullBytes: s.PublicKey},
	}
	tbs.Validity.NotBefore, tbs.Validity.NotAfter = s.From.UTC(), s.Until.UTC()
	if s.Version == 3 {
		tbs.Extensions = s.Extensions
	}
	return Marshal(t, certificate{tbs, algorithm, asn1.BitString{Bytes: []byte("unsigned"), BitLength: 64}})
}

// completed fills in what the zero values mean.
func (s Spec) completed(t testing.TB) Spec {
	t.Helper()
	if s.Version == 0 {
		s.Version = 3
	}
	if s.From.IsZero() {
		s.From = At().Add(-100 * Day)
	}
	if s.Until.IsZero() {
		s.Until = At().Add(265 * Day)
	}
	if s.RawSubject == nil {
		s.RawSubject = Marshal(t, pkix.Name{CommonName: s.Name}.ToRDNSequence())
	}
	if s.PublicKey == nil {
		der, err := x509.MarshalPKIXPublicKey(s.Key.Public())
		if err != nil {
			t.Fatalf("writing the public key: %v", err)
		}
		s.PublicKey = der
	}
	if s.Signature == nil {
		s.Signature = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2} // ecdsa-with-SHA256
	}
	if s.Extensions == nil {
		s.Extensions = CAExtensions(t)
	}
	return s
}

// Marshal writes a value as DER.
func Marshal(t testing.TB, value any) []byte {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatalf("writing DER: %v", err)
	}
	return der
}

// serial makes a positive serial number.
func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatalf("making a serial number: %v", err)
	}
	return n.Add(n, big.NewInt(1))
}
