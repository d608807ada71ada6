package bundle

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"hash/maphash"
	"slices"
	"strings"
)

// Parse reads the text of a bundle, strictly. There are no findings exactly when the text is well-formed and holds a
// certificate; then a kubelet loads from it exactly the certificates that Parse returns. With findings, what could be
// read is returned all the same.
func Parse(data []byte) (*Bundle, []Finding) {
	return parse(data, newMemory())
}

// memory holds the well-formed blocks that were read already. Decoding and parsing is most of the work of reading a bundle,
// and an old and a new bundle have most blocks in common.
type memory struct {
	seed   maphash.Seed
	blocks map[uint64]remembered
}

// remembered is a block and the certificate in it.
type remembered struct {
	text        []byte
	certificate Certificate
}

// newMemory returns an empty memory.
func newMemory() *memory {
	return &memory{seed: maphash.MakeSeed(), blocks: map[uint64]remembered{}}
}

// recall returns the certificate of a block with the same text, which is never empty.
func (m *memory) recall(text []byte) (Certificate, bool) {
	r := m.blocks[maphash.Bytes(m.seed, text)]
	return r.certificate, bytes.Equal(r.text, text)
}

// note remembers a block.
func (m *memory) note(text []byte, c Certificate) {
	m.blocks[maphash.Bytes(m.seed, text)] = remembered{text, c}
}

// parse is Parse with a memory.
func parse(data []byte, known *memory) (*Bundle, []Finding) {
	b := &Bundle{}
	s := &scanner{data: data}
	s.block = func(position int, label string, text []byte) {
		c, found := known.recall(text)
		if !found {
			var faults []Finding
			if c, faults = readBlock(position, label, text); c.X509 == nil {
				s.findings = append(s.findings, faults...)
				return
			}
			known.note(text, c)
		}
		c.Position = position
		b.Certificates = append(b.Certificates, c)
	}
	s.scan()
	if !s.markers {
		return b, diagnose(data)
	}
	return b, s.findings
}

// readBlock reads the certificate of one delimited block.
func readBlock(position int, label string, text []byte) (Certificate, []Finding) {
	fault := func(code Code, format string, args ...any) (Certificate, []Finding) {
		return Certificate{}, []Finding{blockFinding(code, position, format, args...)}
	}
	switch {
	case label == blockType:
	case privateKeyLabel(label):
		return Certificate{}, nil // reported when it began, framed or not
	case strings.Trim(fold([]byte(label)), " -") == blockType:
		return fault(BrokenPEM, "its type is not exactly %s: parsers skip it; write this block anew", blockType)
	default:
		return fault(UnexpectedBlock, "its type is not %s: the kubelet skips it; take it out, or convert it with "+
			"openssl x509", blockType)
	}
	block := decode(text)
	switch {
	case block == nil:
		return fault(BrokenPEM, "its base64 is damaged; write this block anew")
	case len(block.Headers) > 0:
		return fault(PEMHeaders, "it has headers: the kubelet skips it; remove the lines between BEGIN and the base64")
	case len(block.Bytes) == 0:
		return fault(BadCertificate, "it is empty: the kubelet would refuse the whole file; take it out")
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		c, findings := fault(BadCertificate, "%s: the kubelet would refuse the whole file; replace it or take it out",
			withoutQuotes(err))
		if isPrivateKey(block.Bytes) {
			findings = append(findings, blockFinding(PrivateKey, position, privateKeyMessage))
		}
		return c, findings
	}
	return Certificate{Position: position, Fingerprint: sha256.Sum256(block.Bytes), X509: parsed}, nil
}

// withoutQuotes cuts an error of crypto/x509 where it begins to quote the certificate: no message echoes content.
func withoutQuotes(err error) string {
	message, _, _ := strings.Cut(err.Error(), `"`)
	return strings.TrimRight(message, " :")
}

// isPrivateKey says whether der is a private key that is not encrypted, whatever its label said.
func isPrivateKey(der []byte) bool {
	if _, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		return true
	}
	if _, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return true
	}
	_, err := x509.ParseECPrivateKey(der)
	return err == nil
}

// diagnose says what a text without any marker is.
func diagnose(data []byte) []Finding {
	if blank(data) {
		return []Finding{finding(MissingBundle, "there is no bundle: the key is missing, empty or blank; "+
			"write the CA certificates as PEM")}
	}
	what, inside := "it has no PEM marker; write the CA certificates as PEM", data
	withoutNUL := bytes.ReplaceAll(data, []byte{0}, nil)
	decoded, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(data)), ""))
	switch {
	case len(data) > 1 && data[0] == 0x30 && data[1] >= 0x80:
		what = "it is DER, not PEM; convert it with openssl x509 -inform DER"
	case bytes.Contains(withoutNUL, markerSuffix):
		what, inside = "it is UTF-16, as some Windows programs save text; save it as UTF-8 without a byte-order mark", withoutNUL
	case err == nil:
		what, inside = "it is base64 of something, as copied out of a Secret; decode it first", decoded
	}
	findings := []Finding{finding(NotPEM, "%s", what)}
	if isPrivateKey(inside) || bytes.Contains(inside, []byte("PRIVATE KEY-----")) {
		findings = append(findings, finding(PrivateKey, privateKeyMessage))
	}
	return findings
}

// unreadable says whether the findings leave open which certificates the bundle was meant to hold.
func unreadable(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Code != PrivateKey })
}
