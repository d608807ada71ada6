package decade

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"math/big"
	"time"

	"kubelet-ca-courier/bundle"
)

// mint makes certificates. It is deterministic: the same seed makes the same certificates, so that the order by DER, and
// with it the whole run, is repeatable.
type mint struct {
	seed  uint64
	count uint64
}

// authority is a CA with its key.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
	fingerprint bundle.Fingerprint
}

// number is the next one.
func (m *mint) number() uint64 {
	m.count++
	return m.count
}

// key makes a key.
func (m *mint) key(number uint64) *ecdsa.PrivateKey {
	raw := sha256.Sum256(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, m.seed), number))
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw[:])
	if err != nil {
		panic(err) // one number in 2^128 is no key
	}
	return key
}

// authority makes a CA. The serial number comes first in the DER where two certificates differ, and is spread out: the
// order by DER is not the order of birth.
func (m *mint) authority(name string, from, until time.Time, usages ...x509.ExtKeyUsage) *authority {
	key := m.key(m.number())
	template := &x509.Certificate{
		SerialNumber: new(big.Int).SetUint64(0x4000_0000 | m.count*0x9E37_79B1&0x3FFF_FFFF),
		Subject:      pkix.Name{CommonName: name}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: usages,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
	a := &authority{key: key}
	a.certificate = sign(template, template, key, key)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
	a.fingerprint = sha256.Sum256(a.certificate.Raw)
	return a
}

// client makes a client certificate like the API server's.
func (m *mint) client(issuer *authority, from, until time.Time) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber: new(big.Int).SetUint64(m.number()),
		Subject:      pkix.Name{CommonName: "system:kube-apiserver", Organization: []string{"kube-master"}}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	return sign(template, issuer.certificate, m.key(0), issuer.key)
}

// sign makes the certificate. Without a source of randomness ECDSA is deterministic (RFC 6979).
func sign(template, parent *x509.Certificate, subject, issuer *ecdsa.PrivateKey) *x509.Certificate {
	der, err := x509.CreateCertificate(nil, template, parent, subject.Public(), issuer)
	if err != nil {
		panic(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return made
}
