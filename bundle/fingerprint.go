package bundle

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Fingerprint is the SHA-256 of a certificate's DER, the name by which messages and break-glass know it.
type Fingerprint [32]byte

// String is the fingerprint in lower-case hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// IsZero says whether f names nothing.
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// sha1Digits is the length of a SHA-1 fingerprint, which many tools print unless told otherwise.
const sha1Digits = 40

// prefix is what tools write before the digits.
var prefix = regexp.MustCompile(`(?i)\bsha256(?: +fingerprint)?[ :=]*`)

// ParseFingerprint reads a fingerprint in any of the usual spellings: capitals or not, with colons, spaces or neither,
// and behind "sha256:" or what `openssl x509 -fingerprint -sha256` prints.
func ParseFingerprint(s string) (Fingerprint, error) {
	digits := strings.TrimSpace(s)
	if at := prefix.FindStringIndex(digits); at != nil && at[0] == 0 {
		digits = digits[at[1]:]
	}
	digits = strings.NewReplacer(":", "", " ", "").Replace(digits)
	var f Fingerprint
	raw, err := hex.DecodeString(digits)
	switch {
	case len(digits) == sha1Digits && err == nil:
		return f, fmt.Errorf("%q has the length of a SHA-1 fingerprint; SHA-256 is needed", shorten(s))
	case err != nil || len(raw) != len(f):
		return f, fmt.Errorf("%q is not a SHA-256 fingerprint of %d hexadecimal digits", shorten(s), 2*len(f))
	}
	copy(f[:], raw)
	return f, nil
}

// AllowanceAnnotation is where an admin writes [Allowances] on the guarded ConfigMap.
const AllowanceAnnotation = "kubelet-ca-courier/allow-drop"

// Allowances names the certificates that break-glass permits to drop although they are still valid.
type Allowances map[Fingerprint]struct{}

// ParseAllowances reads fingerprints separated by commas, semicolons, line ends or spaces. Every malformed one is part of
// the error: break-glass that is half understood is not acted upon.
func ParseAllowances(s string) (Allowances, error) {
	allowed := Allowances{}
	var faults []error
	separators := func(r rune) bool { return strings.ContainsRune(",;\r\n", r) }
	for _, field := range strings.FieldsFunc(s, separators) {
		if f, err := ParseFingerprint(field); err == nil {
			allowed[f] = struct{}{}
			continue
		}
		for _, word := range strings.Fields(prefix.ReplaceAllString(field, " sha256:")) {
			f, err := ParseFingerprint(word)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			allowed[f] = struct{}{}
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return allowed, nil
}

// shorten cuts what a message repeats of a user's input.
func shorten(s string) string {
	const most = 100
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// Unknown returns the fingerprints that no certificate of the given bundles has, in a stable order. Break-glass that names
// nothing is a slip of the pen, and acting on it would do nothing.
func (a Allowances) Unknown(bundles ...[]byte) []Fingerprint {
	if len(a) == 0 {
		return nil
	}
	unknown := maps.Clone(a)
	for _, text := range bundles {
		b, _ := Parse(text)
		for _, c := range b.Certificates {
			delete(unknown, c.Fingerprint)
		}
	}
	return slices.SortedFunc(maps.Keys(unknown), func(x, y Fingerprint) int { return bytes.Compare(x[:], y[:]) })
}
