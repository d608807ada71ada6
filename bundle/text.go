package bundle

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The markers as encoding/pem frames them: at the start of a line, five dashes on either side (RFC 7468 section 2).
var (
	beginPrefix  = []byte("-----BEGIN ")
	endPrefix    = []byte("-----END ")
	markerSuffix = []byte("-----")
)

// almostMarker matches, in a folded line, what was meant as a marker: BEGIN or END with dashes at its side, and either
// three of them or the label of a block. The labels keep prose such as "-- end of 2026" out.
var almostMarker = regexp.MustCompile(
	`-{3,}(?:BEGIN|END)(?:[^A-Z]|$)` +
		`|-{2,} *(?:BEGIN|END)[^-]*` + labels +
		`|(?:^|[^A-Z])(?:BEGIN|END) [^-]*` + labels + `[^-]*-{2,}`)

// labels are the words that the labels of PEM blocks are made of (RFC 7468 section 4, OpenSSL's pem.h).
const labels = `(?:CERT|KEY|PKCS|CRL|CMS|REQUEST|PARAMETERS)`

// looksLikeMarker says whether a line holds what a human, though not encoding/pem, takes for a marker: in any case, with
// any dashes, indented, with invisible characters, or in the middle of a line.
func looksLikeMarker(line []byte) bool {
	if bytes.Contains(line, beginPrefix[:10]) || bytes.Contains(line, endPrefix[:8]) {
		return true
	}
	if bytes.IndexByte(line, '-') < 0 && isASCII(line) {
		return false
	}
	return almostMarker.MatchString(fold(line))
}

// fold reduces a line to what a human sees of it: capitals, plain dashes and spaces, nothing invisible. A dash beyond
// ASCII counts for two hyphens, because word processors make one dash of two hyphens.
func fold(line []byte) string {
	var seen strings.Builder
	for _, r := range string(line) {
		switch {
		case r >= '！' && r <= '～': // the full-width forms of ASCII
			r -= '！' - '!'
		case invisible(r):
			continue
		}
		switch {
		case r == '-':
			seen.WriteByte('-')
		case unicode.IsSpace(r):
			seen.WriteByte(' ')
		case dash(r):
			seen.WriteString("--")
		default:
			seen.WriteRune(unicode.ToUpper(r))
		}
	}
	return seen.String()
}

// invisible says whether a reader cannot see r: format characters such as the byte-order mark, zero-width space and soft
// hyphen, combining marks, the Hangul fillers, and control characters other than spaces and NUL. (NUL stays: it tells
// UTF-16 from text.)
func invisible(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Mn, unicode.Me) || r == 'ᅟ' || r == 'ᅠ' || r == 'ㅤ' || r == 'ﾠ' ||
		r != 0 && unicode.IsControl(r) && !unicode.IsSpace(r)
}

// dash says whether r looks like a dash: Unicode's dashes, the minus sign, the hyphen bullet and the box-drawing lines.
func dash(r rune) bool {
	return unicode.Is(unicode.Pd, r) || r == '−' || r == '⁃' || r == '─' || r == '━' || r == 'ー'
}

// Lengths from which base64 characters count as a stretch of base64 rather than as a word. OpenSSL prints no such line
// between blocks; a line of a PEM block has 64 characters, its last one fewer.
const (
	stretchAsLine = 16 // a whole line of nothing else
	stretchPadded = 8  // a whole line of nothing else that ends in padding
	stretchInLine = 48 // anywhere in a line
)

// holdsBase64 says whether a line holds a stretch of base64: lost content of a block, or a block without its markers.
// Hexadecimal digits, as OpenSSL prints moduli and serial numbers, are none.
func holdsBase64(line []byte) bool {
	visible := bytes.TrimSpace(bytes.Map(dropInvisible, line))
	unpadded := bytes.TrimRight(visible, "=")
	if !bytes.ContainsFunc(unpadded, notBase64) {
		padded := len(unpadded) < len(visible) && len(visible)%4 == 0
		return (len(unpadded) >= stretchAsLine || padded && len(unpadded) >= stretchPadded) && mixed(unpadded)
	}
	for _, run := range bytes.FieldsFunc(unpadded, notBase64) {
		if len(run) >= stretchInLine && mixed(run) {
			return true
		}
	}
	return false
}

// dropInvisible maps what a reader cannot see to nothing.
func dropInvisible(r rune) rune {
	if invisible(r) {
		return -1
	}
	return r
}

// notBase64 says whether r is no character of RFC 4648 section 4, padding aside.
func notBase64(r rune) bool {
	return !('A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '+' || r == '/')
}

// mixed says whether a run of base64 characters looks like encoded bytes: capitals, small letters, and something that is
// no letter, and not hexadecimal digits alone.
func mixed(run []byte) bool {
	const hexadecimal = "0123456789abcdefABCDEF"
	return bytes.ContainsFunc(run, unicode.IsUpper) && bytes.ContainsFunc(run, unicode.IsLower) &&
		bytes.ContainsAny(run, "0123456789+/") && len(bytes.Trim(run, hexadecimal)) > 0
}

// blank says whether a reader sees nothing at all.
func blank(data []byte) bool {
	return !bytes.ContainsFunc(data, func(r rune) bool { return !unicode.IsSpace(r) && !invisible(r) })
}

// isASCII says whether every byte is ASCII.
func isASCII(data []byte) bool {
	for _, c := range data {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
