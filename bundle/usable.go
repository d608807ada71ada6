package bundle

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"slices"
	"time"
)

// ClockSkew is how far the clocks of nodes, of the bundle's writer and of the judge may be apart: a CA whose time ends
// within it may go, and one whose time begins within it may be all there is, as when a rotation starts afresh.
const ClockSkew = 5 * time.Minute

// soon is the time before its end from which a certificate is worth a warning.
const soon = 30 * 24 * time.Hour

// defect is a reason for which a kubelet never accepts what a certificate signed, whatever the time.
type defect struct {
	code Code
	why  string
}

// defects lists them. The conditions are those of crypto/x509: (*Certificate).CheckSignatureFrom, isValid and
// checkChainForKeyUsage for a root that issued a client certificate.
func defects(c *x509.Certificate) []defect {
	// RFC 5280 section 4.2.1.9. Certificates before version 3 have no extensions, and pass. Of what is no CA, nothing more
	// needs saying.
	if c.Version == 3 && !c.BasicConstraintsValid || c.BasicConstraintsValid && !c.IsCA {
		return []defect{{NotCA, "not a CA: whoever holds its key could log in to every kubelet with it; take it out"}}
	}
	var found []defect
	add := func(code Code, why string) { found = append(found, defect{code, why}) }
	// RFC 5280 section 4.2.1.3.
	if c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
		add(CannotSign, "its key usage lacks certificate signing, so it verifies nothing; re-issue it with keyCertSign")
	}
	// RFC 5280 section 4.2.
	if len(c.UnhandledCriticalExtensions) > 0 {
		add(CannotSign, "it has a critical extension that the kubelet does not know, so it verifies nothing; "+
			"re-issue it without")
	}
	if !allowsClientAuth(c) {
		add(NotForClientAuth, "its extended key usage excludes client authentication, so it verifies no client; "+
			"re-issue it with clientAuth, or without extended key usage")
	}
	if !strongKey(c) {
		add(WeakKey, "the kubelet refuses a key of this kind or size, so it verifies nothing; "+
			"use RSA of 2048 bits or more, ECDSA or Ed25519")
	}
	return found
}

// allowsClientAuth says whether the extended key usage leaves room for client certificates. Absent means any.
func allowsClientAuth(c *x509.Certificate) bool {
	if len(c.ExtKeyUsage) == 0 && len(c.UnknownExtKeyUsage) == 0 {
		return true
	}
	return slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
}

// Limits of Go's RSA: crypto/rsa checkKeySize and crypto/internal/fips140/rsa checkPublicKey.
const (
	minRSABits     = 1024
	maxRSAExponent = 1<<31 - 1
)

// strongKey says whether Go verifies signatures with the certificate's key.
func strongKey(c *x509.Certificate) bool {
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() >= minRSABits && key.N.Bit(0) == 1 &&
			key.E > 1 && key.E <= maxRSAExponent && key.E&1 == 1
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// validAt says whether t is within the certificate's time, both ends included, as crypto/x509 reads them.
func validAt(c *x509.Certificate, t time.Time) bool {
	return !t.Before(c.NotBefore) && !t.After(c.NotAfter)
}

// begins says whether c is about to begin, so that a clock which is ahead of now, such as that of the one who just made
// it, shows a time within it.
func begins(c *x509.Certificate, now time.Time) bool {
	return now.Before(c.NotBefore) && validAt(c, now.Add(ClockSkew))
}

// Unusable says why a kubelet whose clock shows now would refuse a client certificate that this CA issued: for defects, or
// because it is Expired or NotYetValid. It is empty where the kubelet would accept it.
func (c Certificate) Unusable(now time.Time) []Code {
	found := defects(c.X509)
	why := make([]Code, 0, len(found)+1)
	for _, d := range found {
		why = append(why, d.code)
	}
	switch {
	case now.Before(c.X509.NotBefore):
		why = append(why, NotYetValid)
	case now.After(c.X509.NotAfter):
		why = append(why, Expired)
	}
	return why
}

// weakSignature says whether the certificate's own signature uses a broken hash. Nobody verifies the signature of a
// trust anchor, so it is only worth a word.
func weakSignature(c *x509.Certificate) bool {
	switch c.SignatureAlgorithm {
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1:
		return true
	}
	return false
}
