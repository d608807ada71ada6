package bundle

import (
	"fmt"
	"strings"
	"unicode"
)

// Code names one kind of finding. Codes are stable: they are part of messages, events, exit reports and metric labels.
type Code string

// Codes of denials.
const (
	// MissingBundle: the key is gone, empty or blank, or it moved between data and binaryData with other bytes.
	MissingBundle Code = "MissingBundle"
	// NotPEM: no PEM marker at all, as in DER, UTF-16, base64 of PEM, or plain text.
	NotPEM Code = "NotPEM"
	// BrokenPEM: a trace of a block that does not frame. Parsers skip such a block and lose a CA without a word.
	BrokenPEM Code = "BrokenPEM"
	// UnexpectedBlock: a block of another type than CERTIFICATE. The kubelet skips it without a word.
	UnexpectedBlock Code = "UnexpectedBlock"
	// PrivateKey: a private key of any kind. Whoever can read the bundle now has it.
	PrivateKey Code = "PrivateKey"
	// PEMHeaders: a CERTIFICATE block with headers. The kubelet skips it without a word.
	PEMHeaders Code = "PEMHeaders"
	// BadCertificate: DER that does not parse, trailing bytes, an empty block. The kubelet refuses the whole file.
	BadCertificate Code = "BadCertificate"
	// NotCA: not a CA. A leaf in the file is a login credential for whoever holds its key.
	NotCA Code = "NotCA"
	// CannotSign: the key usage lacks keyCertSign, or a critical extension is unknown to Go: it verifies nothing.
	CannotSign Code = "CannotSign"
	// NotForClientAuth: the extended key usage has neither clientAuth nor any: it verifies no client.
	NotForClientAuth Code = "NotForClientAuth"
	// WeakKey: a key that Go's verifier refuses.
	WeakKey Code = "WeakKey"
	// NoUsableCA: no CA in the bundle would verify a client certificate now.
	NoUsableCA Code = "NoUsableCA"
	// DropsValidCA: a CA that is usable now and beyond the clock skew is gone, and nothing covers it.
	DropsValidCA Code = "DropsValidCA"
	// TooManyCAs: more subject names than TLS can carry, or more CAs under one subject than Go's verifier tries.
	TooManyCAs Code = "TooManyCAs"
	// Immutable: immutable: true would stop every later rotation.
	Immutable Code = "Immutable"
	// Deletion: the bundle would be deleted.
	Deletion Code = "Deletion"
	// BadAllowance: the break-glass annotation is malformed, or names a certificate that neither bundle has.
	BadAllowance Code = "BadAllowance"
)

// Codes of warnings. NotCA, CannotSign, NotForClientAuth and WeakKey are warnings too, for a certificate that the old
// bundle already had.
const (
	// Expired: the certificate's time is over. It does no harm.
	Expired Code = "Expired"
	// NotYetValid: the certificate's time has not begun. Publishing a signer ahead of its time is ordinary.
	NotYetValid Code = "NotYetValid"
	// ExpiresSoon: the certificate ends within 30 days.
	ExpiresSoon Code = "ExpiresSoon"
	// Duplicate: the same certificate is there twice.
	Duplicate Code = "Duplicate"
	// Reissued: a CA is gone, and another with the same key and subject takes over all of its trust.
	Reissued Code = "Reissued"
	// AllowedDrop: a valid CA is gone, as the break-glass annotation allows.
	AllowedDrop Code = "AllowedDrop"
	// WeakSignature: the certificate itself is signed with SHA-1 or MD5. A kubelet does not verify that signature.
	WeakSignature Code = "WeakSignature"
)

// Finding is one thing that is wrong, or worth knowing, about a bundle or a change. It never holds bundle content beyond
// a certificate's subject.
type Finding struct {
	// Code is the kind.
	Code Code `json:"code"`
	// Message says where, what, and what to do, in one line.
	Message string `json:"message"`
	// Position is the number of the block in the bundle, counted from 1; 0 where the finding is about no single block.
	Position int `json:"-"`
	// Subject is the certificate's subject, cut to a readable length; empty where no certificate could be read.
	Subject string `json:"-"`
	// Fingerprint is the SHA-256 of the certificate's DER; zero where no certificate could be read.
	Fingerprint Fingerprint `json:"-"`
}

// maxSubject is how many characters of a subject a message repeats: a subject may be tens of kilobytes long.
const maxSubject = 120

// finding makes a finding that is about no single block.
func finding(code Code, format string, args ...any) Finding {
	return Finding{Code: code, Message: fmt.Sprintf(format, args...)}
}

// blockFinding makes a finding about a block from which no certificate could be read.
func blockFinding(code Code, position int, format string, args ...any) Finding {
	f := finding(code, format, args...)
	f.Message = fmt.Sprintf("block %d: %s", position, f.Message)
	f.Position = position
	return f
}

// finding makes a finding about c.
func (c Certificate) finding(code Code, format string, args ...any) Finding {
	subject := c.Subject()
	f := finding(code, format, args...)
	f.Message = fmt.Sprintf("certificate %d (%q, sha256 %s): %s", c.Position, subject, c.Fingerprint, f.Message)
	f.Position, f.Subject, f.Fingerprint = c.Position, subject, c.Fingerprint
	return f
}

// Subject is the certificate's subject as a message shows it: one line, no longer than is readable, and nothing in it that
// a terminal would act on. A subject is whatever its maker wrote.
func (c Certificate) Subject() string {
	subject := []rune(strings.Map(printable, c.X509.Subject.String()))
	if len(subject) > maxSubject {
		return string(subject[:maxSubject]) + "…"
	}
	return string(subject)
}

// printable puts a question mark in the place of control and format characters, such as escapes, line ends and those that
// turn the reading direction around.
func printable(r rune) rune {
	if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
		return '?'
	}
	return r
}
