package bundle

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"slices"
)

// Certificate is one certificate of a bundle.
type Certificate struct {
	// Position is the number of its block in the bundle, counted from 1; every block counts.
	Position int
	// Fingerprint is the SHA-256 of its DER.
	Fingerprint Fingerprint
	// X509 is the certificate; X509.Raw is the DER.
	X509 *x509.Certificate
}

// Bundle is what could be read from the text of a CA bundle.
type Bundle struct {
	// Certificates are in the order of the text, duplicates included.
	Certificates []Certificate
}

// blockType is the type of the PEM blocks that a kubelet reads (RFC 7468 section 5).
const blockType = "CERTIFICATE"

// Distinct returns the certificates without duplicates, sorted by DER.
func (b *Bundle) Distinct() []Certificate {
	sorted := slices.Clone(b.Certificates)
	slices.SortFunc(sorted, func(x, y Certificate) int {
		return cmp.Or(bytes.Compare(x.X509.Raw, y.X509.Raw), cmp.Compare(x.Position, y.Position))
	})
	return slices.CompactFunc(sorted, func(x, y Certificate) bool { return x.Fingerprint == y.Fingerprint })
}

// Canonical is the one form in which a bundle is delivered: each certificate once, sorted by DER, bare PEM with "\n" line
// ends. Bundles with the same set of certificates have the same canonical form.
func (b *Bundle) Canonical() []byte {
	var text bytes.Buffer
	for _, c := range b.Distinct() {
		text.Write(pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: c.X509.Raw}))
	}
	return text.Bytes()
}

// Hash is the hexadecimal SHA-256 of the canonical form.
func (b *Bundle) Hash() string { return Hash(b.Canonical()) }

// Hash is the hexadecimal SHA-256 of data.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Merge returns the union of the bundles: every certificate once, where it is first seen, numbered anew.
func Merge(bundles ...*Bundle) *Bundle {
	merged := &Bundle{}
	seen := map[Fingerprint]struct{}{}
	for _, b := range bundles {
		for _, c := range b.Certificates {
			if _, found := seen[c.Fingerprint]; found {
				continue
			}
			seen[c.Fingerprint] = struct{}{}
			c.Position = len(merged.Certificates) + 1
			merged.Certificates = append(merged.Certificates, c)
		}
	}
	return merged
}

// SameSet says whether a and b hold exactly the same certificates, whatever the order and however often.
func SameSet(a, b *Bundle) bool {
	return len(Missing(a, b)) == 0 && len(Missing(b, a)) == 0
}

// Missing returns the certificates of from that in lacks, each once, in the order of from.
func Missing(from, in *Bundle) []Certificate {
	had := in.fingerprints()
	var missing []Certificate
	for _, c := range from.Certificates {
		if _, found := had[c.Fingerprint]; found {
			continue
		}
		had[c.Fingerprint] = struct{}{}
		missing = append(missing, c)
	}
	return missing
}

// fingerprints is the set of the bundle's certificates.
func (b *Bundle) fingerprints() map[Fingerprint]struct{} {
	set := make(map[Fingerprint]struct{}, len(b.Certificates))
	for _, c := range b.Certificates {
		set[c.Fingerprint] = struct{}{}
	}
	return set
}
