package gate

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"net"
	"testing"
	"time"

	"kubelet-ca-courier/bundle/bundletest"
)

// variant is one way for a part of a certificate to be.
type variant[T any] struct {
	name string
	is   T
}

func basicConstraintsVariants(t *testing.T) []variant[[]pkix.Extension] {
	t.Helper()
	return []variant[[]pkix.Extension]{
		{"no basic constraints", nil},
		{"a CA", []pkix.Extension{bundletest.BasicConstraints(t, true, -1)}},
		{"a CA of path length 0", []pkix.Extension{bundletest.BasicConstraints(t, true, 0)}},
		{"a CA of path length 1", []pkix.Extension{bundletest.BasicConstraints(t, true, 1)}},
		{"not a CA", []pkix.Extension{bundletest.BasicConstraints(t, false, -1)}},
	}
}

func keyUsageVariants(t *testing.T) []variant[[]pkix.Extension] {
	t.Helper()
	all := []variant[[]pkix.Extension]{{"no key usage", nil}}
	for _, usage := range []x509.KeyUsage{0, x509.KeyUsageCertSign, x509.KeyUsageCRLSign, x509.KeyUsageDigitalSignature,
		x509.KeyUsageCertSign | x509.KeyUsageCRLSign, x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign} {
		all = append(all, variant[[]pkix.Extension]{fmt.Sprintf("key usage %b", usage), []pkix.Extension{bundletest.KeyUsage(t, usage)}})
	}
	return all
}

func extendedKeyUsageVariants(t *testing.T) []variant[[]pkix.Extension] {
	t.Helper()
	all := []variant[[]pkix.Extension]{{"no extended key usage", nil}}
	for _, usages := range [][]asn1.ObjectIdentifier{
		{bundletest.ClientAuth}, {bundletest.ServerAuth}, {bundletest.AnyUsage}, {bundletest.UnknownUsage},
		{bundletest.ServerAuth, bundletest.ClientAuth}, {bundletest.UnknownUsage, bundletest.AnyUsage},
	} {
		all = append(all, variant[[]pkix.Extension]{fmt.Sprint("extended key usage ", usages), []pkix.Extension{bundletest.ExtendedKeyUsage(t, usages...)}})
	}
	return all
}

func otherExtensionVariants(t *testing.T) []variant[[]pkix.Extension] {
	t.Helper()
	return []variant[[]pkix.Extension]{
		{"nothing else", nil},
		{"a name constraint", []pkix.Extension{bundletest.NameConstraints(t, x509.Certificate{PermittedDNSDomains: []string{"example.com"}})}},
		{"an unknown critical extension", []pkix.Extension{bundletest.UnknownCritical(t)}},
	}
}

func timeVariants() []variant[[2]time.Time] {
	at := bundletest.At()
	return []variant[[2]time.Time]{
		{"valid", [2]time.Time{at.Add(-time.Hour), at.Add(time.Hour)}},
		{"from this second", [2]time.Time{at, at.Add(time.Hour)}},
		{"until this second", [2]time.Time{at.Add(-time.Hour), at}},
		{"from the next second", [2]time.Time{at.Add(time.Second), at.Add(time.Hour)}},
		{"until the last second", [2]time.Time{at.Add(-time.Hour), at.Add(-time.Second)}},
	}
}

// nameConstraintVariants are some that hold each other, overlap, or have nothing in common.
func nameConstraintVariants(t *testing.T) []variant[[]pkix.Extension] {
	t.Helper()
	network := func(text string) []*net.IPNet {
		_, n, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		return []*net.IPNet{n}
	}
	all := []variant[[]pkix.Extension]{{"no name constraints", nil}}
	for name, template := range map[string]x509.Certificate{
		"DNS example.com":                       {PermittedDNSDomains: []string{"example.com"}},
		"DNS EXAMPLE.com":                       {PermittedDNSDomains: []string{"EXAMPLE.com"}},
		"DNS .example.com":                      {PermittedDNSDomains: []string{".example.com"}},
		"DNS bad.example.com":                   {PermittedDNSDomains: []string{"bad.example.com"}},
		"DNS example.com, example.org":          {PermittedDNSDomains: []string{"example.com", "example.org"}},
		"DNS com":                               {PermittedDNSDomains: []string{"com"}},
		"DNS not bad.example.com":               {ExcludedDNSDomains: []string{"bad.example.com"}},
		"DNS not .bad.example.com":              {ExcludedDNSDomains: []string{".bad.example.com"}},
		"DNS not example.com":                   {ExcludedDNSDomains: []string{"example.com"}},
		"DNS example.com, not bad.example.com":  {PermittedDNSDomains: []string{"example.com"}, ExcludedDNSDomains: []string{"bad.example.com"}},
		"DNS example.com, not other.net":        {PermittedDNSDomains: []string{"example.com"}, ExcludedDNSDomains: []string{"other.net"}},
		"IP 10.0.0.0/8":                         {PermittedIPRanges: network("10.0.0.0/8")},
		"IP 10.1.0.0/16":                        {PermittedIPRanges: network("10.1.0.0/16")},
		"IP not 10.1.0.0/16":                    {ExcludedIPRanges: network("10.1.0.0/16")},
		"IP fd00::/16":                          {PermittedIPRanges: network("fd00::/16")},
		"IP not 10.0.0.0/8":                     {ExcludedIPRanges: network("10.0.0.0/8")},
		"mail example.com":                      {PermittedEmailAddresses: []string{"example.com"}},
		"mail u@example.com":                    {PermittedEmailAddresses: []string{"u@example.com"}},
		"mail not u@example.com":                {ExcludedEmailAddresses: []string{"u@example.com"}},
		"URI example.com":                       {PermittedURIDomains: []string{"example.com"}},
		"URI not .example.com":                  {ExcludedURIDomains: []string{".example.com"}},
		"DNS example.com, URI not .example.com": {PermittedDNSDomains: []string{"example.com"}, ExcludedURIDomains: []string{".example.com"}},
	} {
		all = append(all, variant[[]pkix.Extension]{name, []pkix.Extension{bundletest.NameConstraints(t, template)}})
	}
	return all
}
