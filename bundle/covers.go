package bundle

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"iter"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// covers says whether a kubelet that trusts the CA heir, which is usable, accepts every client certificate that it
// accepted on behalf of the CA gone: same subject and key, an end that is no sooner, and no narrower constraints. What the
// extended key usage excludes beside clientAuth is nothing to a kubelet, and an heir that excludes that is not usable.
func covers(heir, gone *x509.Certificate) bool {
	return bytes.Equal(heir.RawSubject, gone.RawSubject) &&
		bytes.Equal(heir.RawSubjectPublicKeyInfo, gone.RawSubjectPublicKeyInfo) &&
		!heir.NotAfter.Before(gone.NotAfter) &&
		pathLength(heir) >= pathLength(gone) &&
		!narrower(heir, gone)
}

// pathLength is how many intermediates a chain may have below c (RFC 5280 section 4.2.1.9).
func pathLength(c *x509.Certificate) int {
	if c.BasicConstraintsValid && c.MaxPathLen >= 0 {
		return c.MaxPathLen
	}
	return math.MaxInt
}

// oidNameConstraints is the extension of RFC 5280 section 4.2.1.10.
var oidNameConstraints = asn1.ObjectIdentifier{2, 5, 29, 30}

// narrower says whether heir's name constraints exclude a name that those of gone permit. Where that could only be told
// by adding up several constraints, the answer is yes.
func narrower(heir, gone *x509.Certificate) bool {
	constrained := func(c *x509.Certificate) bool {
		return slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(oidNameConstraints) })
	}
	if !constrained(heir) {
		return false
	}
	// The mere presence of the extension makes Go refuse names that no constraint could be matched against.
	if !constrained(gone) {
		return true
	}
	kinds := func(c *x509.Certificate) []subtrees {
		return []subtrees{
			{c.PermittedDNSDomains, c.ExcludedDNSDomains},
			{c.PermittedURIDomains, c.ExcludedURIDomains},
			{c.PermittedEmailAddresses, c.ExcludedEmailAddresses},
			{networks(c.PermittedIPRanges), networks(c.ExcludedIPRanges)},
		}
	}
	after, before := kinds(heir), kinds(gone)
	for i := range after {
		if after[i].narrower(before[i]) {
			return true
		}
	}
	return false
}

// subtrees are the constraints on one kind of name. Each is the root of a subtree of names; see enclosing.
type subtrees struct{ permitted, excluded []string }

// narrower says whether s keeps out a name that from lets in. The time is linear in the number of constraints.
func (s subtrees) narrower(from subtrees) bool {
	before, still := orAll(from.permitted), set(orAll(s.permitted))
	permitted, excluded := set(before), set(from.excluded)
	above := map[string]struct{}{}
	for _, root := range before {
		if within(root, excluded) {
			continue // nothing of it was let in
		}
		if !within(root, still) {
			return true
		}
		for r := range enclosing(root) {
			above[r] = struct{}{}
		}
	}
	for _, root := range s.excluded {
		_, holdsPermitted := above[plain(root)]
		if (holdsPermitted || within(root, permitted)) && !within(root, excluded) {
			return true
		}
	}
	return false
}

// orAll is the permitted subtrees: where there are none, everything is permitted.
func orAll(permitted []string) []string {
	if len(permitted) == 0 {
		return []string{""}
	}
	return permitted
}

// set makes a set of roots.
func set(roots []string) map[string]struct{} {
	s := make(map[string]struct{}, len(roots))
	for _, root := range roots {
		s[plain(root)] = struct{}{}
	}
	return s
}

// within says whether the subtree of root lies in a subtree of the set.
func within(root string, in map[string]struct{}) bool {
	for r := range enclosing(root) {
		if _, found := in[r]; found {
			return true
		}
	}
	return false
}

// enclosing yields the roots of all subtrees that hold the whole subtree of root, itself first. A mailbox lies in its
// domain; "example.com" holds itself and all below, ".example.com" what is below, "" everything (crypto/x509
// dnsHasSuffix); a network lies in all networks with shorter masks.
func enclosing(root string) iter.Seq[string] {
	return func(yield func(string) bool) {
		root := plain(root)
		for yield(root) && root != "" {
			root = parent(root)
		}
	}
}

// plain makes equal roots equal strings. Case counts in the local part of a mailbox alone (RFC 5280 section 7.5), which may
// be quoted (RFC 5321 section 4.1.2).
func plain(root string) string {
	at := strings.LastIndexByte(root, '@') + 1
	return unquoted(root[:at]) + strings.ToLower(root[at:])
}

// unquoted takes the quotation marks and the backslashes away that only quote.
func unquoted(local string) string {
	var text strings.Builder
	quoted := false
	for _, c := range []byte(local) {
		if !quoted && (c == '\\' || c == '"') {
			quoted = c == '\\'
			continue
		}
		text.WriteByte(c)
		quoted = false
	}
	return text.String()
}

// parent is the next larger subtree.
func parent(root string) string {
	if network, err := netip.ParsePrefix(root); err == nil {
		if network.Bits() == 0 {
			return ""
		}
		return netip.PrefixFrom(network.Addr(), network.Bits()-1).Masked().String()
	}
	if at := strings.LastIndexByte(root, '@'); at >= 0 {
		return root[at+1:]
	}
	switch dot := strings.IndexByte(root, '.'); {
	case dot < 0:
		return ""
	case dot == 0:
		return root[1:]
	default:
		return root[dot:]
	}
}

// networks writes IP ranges as roots. IPv4 and IPv6 have none in common.
func networks(ranges []*net.IPNet) []string {
	roots := make([]string, 0, len(ranges))
	for _, r := range ranges {
		ones, _ := r.Mask.Size()
		if address, ok := netip.AddrFromSlice(r.IP); ok {
			roots = append(roots, netip.PrefixFrom(address, ones).Masked().String())
		}
	}
	return roots
}
