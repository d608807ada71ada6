package bundle_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

// constraints reads name constraints, such as "DNS example.com, not IP 10.0.0.0/8"; a kind alone stands for all of it.
func constraints(t testing.TB, text string) x509.Certificate {
	t.Helper()
	var c x509.Certificate
	for _, part := range strings.Split(text, ", ") {
		rest, not := strings.CutPrefix(part, "not ")
		kind, root, _ := strings.Cut(rest, " ")
		roots := map[string][2]*[]string{
			"DNS":  {&c.PermittedDNSDomains, &c.ExcludedDNSDomains},
			"URI":  {&c.PermittedURIDomains, &c.ExcludedURIDomains},
			"mail": {&c.PermittedEmailAddresses, &c.ExcludedEmailAddresses},
		}[kind]
		switch {
		case kind == "IP":
			_, network, err := net.ParseCIDR(root)
			if err != nil {
				t.Fatal(err)
			}
			if not {
				c.ExcludedIPRanges = append(c.ExcludedIPRanges, network)
			} else {
				c.PermittedIPRanges = append(c.PermittedIPRanges, network)
			}
		case not:
			*roots[1] = append(*roots[1], root)
		default:
			*roots[0] = append(*roots[0], root)
		}
	}
	return c
}

// constrained are the extensions of a CA with name constraints; an empty text stands for none.
func constrained(t testing.TB, text string) []pkix.Extension {
	t.Helper()
	extensions := bundletest.CAExtensions(t)
	if text == "" {
		return extensions
	}
	return append(extensions, bundletest.NameConstraints(t, constraints(t, text)))
}

// accepted says whether crypto/x509 accepts a client of that name, such as "mail u@example.com", which the CA issued.
func accepted(t testing.TB, ca bundletest.CA, name string) bool {
	t.Helper()
	template := x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	kind, value, _ := strings.Cut(name, " ")
	switch kind {
	case "DNS":
		template.DNSNames = []string{value}
	case "mail":
		template.EmailAddresses = []string{value}
	case "IP":
		template.IPAddresses = []net.IP{net.ParseIP(value)}
	case "URI":
		address, err := url.Parse(value)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{address}
	default:
		t.Fatalf("no such kind of name: %q", name)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(ca.Certificate)
	_, err := ca.Issue(t, template, ca.Key).Verify(x509.VerifyOptions{
		Roots: trusted, CurrentTime: bundletest.At(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

// takesOver says whether a review lets heir take the place of gone, and sees that it says either that or that gone is lost.
func takesOver(t testing.TB, gone, heir bundletest.CA) bool {
	t.Helper()
	bystander := bundletest.Named(t, "bystander").PEM
	v := bundle.Review(slices.Concat(gone.PEM, bystander), slices.Concat(bystander, heir.PEM), bundletest.At(), nil)
	reissued, lost := slices.Contains(codes(v.Warnings), bundle.Reissued), slices.Contains(codes(v.Reasons), bundle.DropsValidCA)
	if reissued == lost || v.Allowed != reissued {
		t.Fatalf("allowed %v, reasons %v, warnings %v", v.Allowed, v.Reasons, v.Warnings)
	}
	return reissued
}

// addingUp marks constraints that exclude nothing more, as only several of them together show.
const addingUp = "adding up"

func TestAnHeirWithNarrowerNameConstraintsDoesNotTakeOver(t *testing.T) {
	key := bundletest.NewKey(t)
	for _, c := range []struct {
		gone, heir string
		lost       string // a name that the heir no longer accepts; empty where there is none
	}{
		// Whether there are any.
		{"", "", ""},
		{"DNS example.com", "", ""},
		{"not DNS example.com", "", ""},
		{"", "DNS example.com", "DNS example.org"},
		{"", "not DNS example.com", "DNS example.com"},
		{"", "DNS", "URI urn:x"}, // every host is permitted, and a URI without one cannot be matched
		// Permitted domains.
		{"DNS example.com", "DNS example.com", ""},
		{"DNS example.com", "DNS EXAMPLE.com", ""},
		{"DNS EXAMPLE.com", "DNS example.COM", ""},
		{"DNS a.example.com", "DNS example.com", ""},
		{"DNS a.example.com", "DNS .example.com", ""},
		{"DNS a.b.example.com", "DNS .example.com", ""},
		{"DNS a.b.example.com", "DNS com", ""},
		{"DNS .example.com", "DNS example.com", ""},
		{"DNS .example.com", "DNS .com", ""},
		{"DNS .com", "DNS com", ""},
		{"DNS com", "DNS", ""},
		{"DNS", "DNS", ""},
		{"DNS example.com", "DNS example.com, DNS example.org", ""},
		{"DNS example.com, DNS example.org", "DNS example.org, DNS example.com", ""},
		{"DNS example.com, DNS a.example.com", "DNS example.com", ""},
		{"DNS example.com", "DNS .example.com", "DNS example.com"},
		{"DNS example.com", "DNS a.example.com", "DNS b.example.com"},
		{"DNS badexample.com", "DNS example.com", "DNS badexample.com"},
		{"DNS example.com", "DNS example.org", "DNS example.com"},
		{"DNS com", "DNS .com", "DNS com"},
		{"DNS", "DNS com", "DNS example.org"},
		{"DNS example.com, DNS example.org", "DNS example.com", "DNS example.org"},
		{"DNS example.com, DNS example.org", "DNS example.org", "DNS example.com"},
		{"DNS example.com", "DNS a.example.com, DNS b.example.com", "DNS example.com"},
		{"DNS example.com", "DNS .example.com, DNS a.example.com", "DNS example.com"},
		// Excluded domains.
		{"not DNS example.com", "not DNS example.com", ""},
		{"not DNS example.com", "not DNS EXAMPLE.COM", ""},
		{"not DNS example.com", "not DNS a.example.com", ""},
		{"not DNS example.com", "not DNS .example.com", ""},
		{"not DNS", "not DNS example.com", ""},
		{"not DNS example.com, not DNS example.org", "not DNS example.org", ""},
		{"not DNS a.example.com", "not DNS example.com", "DNS b.example.com"},
		{"not DNS .example.com", "not DNS example.com", "DNS example.com"},
		{"not DNS example.com", "not DNS", "DNS example.org"},
		{"not DNS example.org", "not DNS example.com, not DNS example.org", "DNS example.com"},
		{"not DNS example.org", "not DNS example.org, not DNS example.com", "DNS example.com"},
		{"not DNS example.org", "not DNS a.example.com", "DNS *.example.com"},
		// Permitted and excluded domains.
		{"DNS example.com", "not DNS example.org", ""},
		{"DNS example.com", "DNS example.com, not DNS example.org", ""},
		{"DNS EXAMPLE.com", "DNS example.com, not DNS badexample.com", ""},
		{"DNS example.com, not DNS a.example.com", "DNS example.com, not DNS b.a.example.com", ""},
		{"DNS example.com, not DNS a.example.com", "DNS example.com", ""},
		{"DNS example.com, not DNS com", "DNS example.org", ""},
		{"DNS example.com, not DNS example.com", "not DNS com", ""},
		{"DNS example.com, DNS example.org, not DNS example.com", "DNS example.org", ""},
		{"not DNS", "DNS example.com", ""},
		{"not DNS", "not DNS", ""},
		{"not URI example.com", "not URI example.com, DNS", ""},
		{"DNS example.com", "DNS example.com, not DNS a.example.com", "DNS b.a.example.com"},
		{"DNS example.com", "not DNS A.example.com", "DNS a.example.com"},
		{"DNS example.com", "not DNS EXAMPLE.com", "DNS a.example.com"},
		{"DNS example.com", "not DNS COM", "DNS example.com"},
		{"DNS example.com", "not DNS", "DNS example.com"},
		{"DNS example.com", "not DNS .example.com", "DNS a.example.com"},
		{"DNS .example.com", "not DNS example.com", "DNS a.example.com"},
		{"DNS example.com, DNS example.org", "not DNS org", "DNS example.org"},
		{"DNS example.com, DNS example.org, not DNS example.com", "DNS example.com", "DNS example.org"},
		{"DNS example.com, DNS example.org, not DNS example.com", "not DNS org", "DNS example.org"},
		{"DNS example.com, not DNS a.example.com", "DNS a.example.com", "DNS example.com"},
		{"not DNS example.com", "DNS example.com", "DNS example.org"},
		{"not DNS example.com", "DNS example.org", "DNS example.net"},
		// Mailboxes.
		{"mail u@example.com", "mail u@example.com", ""},
		{"mail u@EXAMPLE.com", "mail u@example.com", ""},
		{"mail u@example.com", "mail example.com", ""},
		{"mail u@a.example.com", "mail .example.com", ""},
		{"mail u@a.example.com", "mail example.com", ""},
		{"mail u@example.com", "mail", ""},
		{"mail example.com", "mail example.com", ""},
		{"mail u@example.com", "not mail v@example.com", ""},
		{"mail example.com", "not mail u@example.org", ""},
		{"not mail example.com", "not mail u@example.com", ""},
		{"mail u@example.com", "mail .example.com", "mail u@example.com"},
		{"mail u@example.com", "mail v@example.com", "mail u@example.com"},
		{"mail u@example.com", "mail U@example.com", "mail u@example.com"},
		{"mail example.com", "mail u@example.com", "mail v@example.com"},
		{"mail example.com", "not mail u@example.com", "mail u@example.com"},
		{"mail u@example.com", "not mail com", "mail u@example.com"},
		{"not mail u@example.com", "not mail example.com", "mail v@example.com"},
		{"not mail u@example.com", "not mail U@example.com", "mail U@example.com"},
		{`mail "u"@example.com`, "mail u@example.com", ""},
		{"mail u@example.com", `mail "u"@example.com`, ""},
		{`mail "a\"b"@example.com`, `mail a\"b@example.com`, ""},
		{`mail "a\\b"@example.com`, `mail a\\b@example.com`, ""},
		{`mail ""@example.com`, "mail example.com", ""},
		{`mail "a@b"@example.com`, "mail example.com", ""},
		{`mail "a@B"@example.com`, `mail "a@b"@example.com`, `mail "a@B"@example.com`},
		{`mail "a\"b"@example.com`, "mail ab@example.com", `mail "a\"b"@example.com`},
		{`mail "a\\b"@example.com`, "mail ab@example.com", `mail "a\\b"@example.com`},
		{"mail u@example.com", `not mail "u"@example.com`, "mail u@example.com"},
		{`mail "u"@example.com`, "not mail u@example.com", "mail u@example.com"},
		// Hosts in URIs.
		{"URI example.com", "URI example.com", ""},
		{"URI .example.com", "URI example.com", ""},
		{"URI example.com", "not URI example.org", ""},
		{"not URI example.com", "not URI a.example.com", ""},
		{"URI example.com", "URI .example.com", "URI https://example.com"},
		{"URI example.com", "not URI a.example.com", "URI https://a.example.com/x"},
		{"not URI a.example.com", "not URI example.com", "URI https://b.example.com/x"},
		// Networks.
		{"IP 10.0.0.0/8", "IP 10.0.0.0/8", ""},
		{"IP 10.1.0.0/16", "IP 10.0.0.0/8", ""},
		{"IP 10.1.2.3/32", "IP 10.1.2.2/31", ""},
		{"IP 10.0.0.0/8", "IP 0.0.0.0/0", ""},
		{"IP fd00::/16", "IP fc00::/7", ""},
		{"IP fd00::/16", "IP ::/0", ""},
		{"IP 10.0.0.0/8, IP fd00::/16", "IP ::/0, IP 10.0.0.0/8", ""},
		{"IP 10.0.0.0/8", "not IP 11.0.0.0/8", ""},
		{"IP 10.0.0.0/8", "not IP ::/0", ""},
		{"IP fd00::/16", "not IP 0.0.0.0/0", ""},
		{"not IP 10.0.0.0/8", "not IP 10.1.0.0/16", ""},
		{"IP 10.0.0.0/8, not IP 0.0.0.0/0", "IP 11.0.0.0/8", ""},
		{"IP 10.0.0.0/8", "IP 10.1.0.0/16", "IP 10.2.0.1"},
		{"IP 10.0.0.0/8", "IP 11.0.0.0/8", "IP 10.0.0.1"},
		{"IP 10.0.0.0/8", "IP ::/0", "IP 10.0.0.1"},
		{"IP fd00::/16", "IP 0.0.0.0/0", "IP fd00::1"},
		{"IP 0.0.0.0/0", "IP 0.0.0.0/1", "IP 128.0.0.1"},
		{"IP 10.0.0.0/8", "not IP 10.1.0.0/16", "IP 10.1.0.1"},
		{"IP 10.1.0.0/16", "not IP 10.0.0.0/8", "IP 10.1.0.1"},
		{"IP 10.0.0.0/8", "not IP 0.0.0.0/0", "IP 10.0.0.1"},
		{"not IP 10.1.0.0/16", "not IP 10.0.0.0/8", "IP 10.2.0.1"},
		{"IP 10.0.0.0/8, IP fd00::/16", "IP 10.0.0.0/8", "IP fd00::1"},
		{"IP 10.0.0.0/8", "IP 10.0.0.0/9, IP 10.128.0.0/9", addingUp},
		{"not IP 10.0.0.0/9, not IP 10.128.0.0/9", "not IP 10.0.0.0/8", addingUp},
		// Each kind has its own.
		{"DNS example.com", "URI example.com", "URI https://example.org"},
		{"DNS example.com", "DNS example.com, not URI example.com", "URI https://example.com"},
		{"DNS example.com", "DNS example.com, not mail example.com", "mail u@example.com"},
		{"DNS example.com", "DNS example.com, not IP 10.0.0.0/8", "IP 10.0.0.1"},
		{"URI example.com", "URI example.com, not DNS example.com", "DNS example.com"},
		{"DNS example.com, URI example.com, mail example.com, IP 10.0.0.0/8", "DNS com, URI com, mail com, IP 10.0.0.0/7", ""},
	} {
		t.Run(c.gone+" then "+c.heir, func(t *testing.T) {
			gone := bundletest.NewCA(t, bundletest.Spec{Name: "signer", Key: key, Extensions: constrained(t, c.gone)})
			heir := bundletest.NewCA(t, bundletest.Spec{Name: "signer", Key: key, Extensions: constrained(t, c.heir)})
			if want := c.lost == ""; takesOver(t, gone, heir) != want {
				t.Errorf("takes over: %v, want %v", !want, want)
			}
			if c.lost != "" && c.lost != addingUp && (!accepted(t, gone, c.lost) || accepted(t, heir, c.lost)) {
				t.Errorf("%q was accepted: %v, still is: %v", c.lost, accepted(t, gone, c.lost), accepted(t, heir, c.lost))
			}
		})
	}
}
