package bundletest

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/bits"
	"testing"
)

// CAExtensions are those of an ordinary CA: basic constraints and a key usage that may sign.
func CAExtensions(t testing.TB) []pkix.Extension {
	t.Helper()
	return []pkix.Extension{BasicConstraints(t, true, -1), KeyUsage(t, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature)}
}

// BasicConstraints is the extension of RFC 5280 section 4.2.1.9; a path length below zero is left out.
func BasicConstraints(t testing.TB, isCA bool, pathLength int) pkix.Extension {
	t.Helper()
	value := struct {
		IsCA       bool `asn1:"optional"`
		PathLength int  `asn1:"optional,default:-1"`
	}{isCA, pathLength}
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: Marshal(t, value)}
}

// KeyUsage is the extension of RFC 5280 section 4.2.1.3. Zero makes an extension without any usage.
func KeyUsage(t testing.TB, usage x509.KeyUsage) pkix.Extension {
	t.Helper()
	raw := []byte{bits.Reverse8(byte(usage)), bits.Reverse8(byte(usage >> 8))}
	length := bits.Len(uint(usage))
	value := asn1.BitString{Bytes: raw[:(length+7)/8], BitLength: length}
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Critical: true, Value: Marshal(t, value)}
}

// Extended key usages (RFC 5280 section 4.2.1.12), and one that nobody knows.
var (
	AnyUsage     = asn1.ObjectIdentifier{2, 5, 29, 37, 0}
	ServerAuth   = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 1}
	ClientAuth   = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 2}
	UnknownUsage = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}
)

// ExtendedKeyUsage is the extension of RFC 5280 section 4.2.1.12.
func ExtendedKeyUsage(t testing.TB, usages ...asn1.ObjectIdentifier) pkix.Extension {
	t.Helper()
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Value: Marshal(t, usages)}
}

// UnknownCritical is an extension that no verifier knows and that is marked as critical.
func UnknownCritical(t testing.TB) pkix.Extension {
	t.Helper()
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 2}, Critical: true, Value: Marshal(t, 1)}
}

// NameConstraints is the extension of RFC 5280 section 4.2.1.10 with the constraints of the template.
func NameConstraints(t testing.TB, template x509.Certificate) pkix.Extension {
	t.Helper()
	key := NewKey(t)
	template.SerialNumber = serial(t)
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatalf("writing name constraints: %v", err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("reading name constraints: %v", err)
	}
	for _, extension := range made.Extensions {
		if extension.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 30}) {
			return extension
		}
	}
	t.Fatal("the template has no name constraints")
	return pkix.Extension{}
}

// Issue makes a certificate that the CA signs. The template needs no serial number; its validity is a century by default.
func (ca CA) Issue(t testing.TB, template x509.Certificate, key crypto.Signer) *x509.Certificate {
	t.Helper()
	template.SerialNumber = serial(t)
	if template.NotBefore.IsZero() {
		template.NotBefore, template.NotAfter = At().AddDate(-50, 0, 0), At().AddDate(50, 0, 0)
	}
	parent := &x509.Certificate{RawSubject: ca.Certificate.RawSubject, PublicKey: ca.Key.Public()}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent, key.Public(), ca.Key)
	if err != nil {
		t.Fatalf("issuing a certificate: %v", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("reading the certificate just issued: %v", err)
	}
	return certificate
}
