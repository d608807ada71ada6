package bundle_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

// parsed reads a bundle that is well-formed.
func parsed(t testing.TB, cas ...bundletest.CA) *bundle.Bundle {
	t.Helper()
	if len(cas) == 0 {
		return &bundle.Bundle{}
	}
	b, findings := bundle.Parse(bundletest.Bundle(cas...))
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	return b
}

// names are the common names of certificates with their positions, such as "a1 b2".
func names(certificates []bundle.Certificate) string {
	var all []string
	for _, c := range certificates {
		all = append(all, c.X509.Subject.CommonName+string(rune('0'+c.Position)))
	}
	return strings.Join(all, " ")
}

func TestBundlesAreSets(t *testing.T) {
	cas := map[rune]bundletest.CA{}
	for _, name := range "abcd" {
		cas[name] = bundletest.Named(t, string(name))
	}
	of := func(text string) *bundle.Bundle {
		var all []bundletest.CA
		for _, name := range text {
			all = append(all, cas[name])
		}
		return parsed(t, all...)
	}
	for _, c := range []struct {
		a, b           string
		merged         string
		missing, extra string // of a in b, of b in a
	}{
		{"", "", "", "", ""},
		{"a", "", "a1", "a1", ""},
		{"", "ab", "a1 b2", "", "a1 b2"},
		{"ab", "ba", "a1 b2", "", ""},
		{"aab", "bba", "a1 b2", "", ""},
		{"ab", "a", "a1 b2", "b2", ""},
		{"ab", "bc", "a1 b2 c3", "a1", "c2"},
		{"abab", "dcdc", "a1 b2 d3 c4", "a1 b2", "d1 c2"},
		{"cab", "bdad", "c1 a2 b3 d4", "c1", "d2"},
	} {
		t.Run(c.a+" and "+c.b, func(t *testing.T) {
			a, b := of(c.a), of(c.b)
			if got := names(bundle.Merge(a, b).Certificates); got != c.merged {
				t.Errorf("merged %q, want %q", got, c.merged)
			}
			if got := names(bundle.Missing(a, b)); got != c.missing {
				t.Errorf("missing %q, want %q", got, c.missing)
			}
			if got := names(bundle.Missing(b, a)); got != c.extra {
				t.Errorf("the other way round missing %q, want %q", got, c.extra)
			}
			want := c.missing == "" && c.extra == ""
			if bundle.SameSet(a, b) != want || bundle.SameSet(b, a) != want {
				t.Errorf("the same set: %v and %v, want %v", bundle.SameSet(a, b), bundle.SameSet(b, a), want)
			}
			if same := bytes.Equal(a.Canonical(), b.Canonical()); same != want || (a.Hash() == b.Hash()) != want {
				t.Errorf("the same canonical form: %v, the same hash: %v, want %v", same, a.Hash() == b.Hash(), want)
			}
		})
	}
	if got := names(bundle.Merge().Certificates); got != "" {
		t.Errorf("nothing merged is %q", got)
	}
	if got := names(bundle.Merge(of("ab"), of("bc"), of("cda")).Certificates); got != "a1 b2 c3 d4" {
		t.Errorf("three merged are %q", got)
	}
}

func TestTheCanonicalFormHasEachCertificateOnceByDER(t *testing.T) {
	a, b, c := bundletest.Named(t, "a"), bundletest.Named(t, "b"), bundletest.Named(t, "c")
	text := strings.ReplaceAll("# three\n"+string(bundletest.Bundle(c, a, c, b, a, c)), "\n", "\r\n")
	read, findings := bundle.Parse([]byte(text))
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	sorted := []bundletest.CA{a, b, c}
	slices.SortFunc(sorted, func(x, y bundletest.CA) int { return bytes.Compare(x.Certificate.Raw, y.Certificate.Raw) })
	want := bundletest.Bundle(sorted...)
	if got := read.Canonical(); !bytes.Equal(got, want) {
		t.Errorf("the canonical form is\n%s, want\n%s", got, want)
	}
	sum := sha256.Sum256(want)
	if got := read.Hash(); got != hex.EncodeToString(sum[:]) {
		t.Errorf("the hash is %s, want %x", got, sum)
	}
	first := map[string]int{"c": 1, "a": 2, "b": 4}
	for _, certificate := range read.Distinct() {
		if certificate.Position != first[certificate.X509.Subject.CommonName] {
			t.Errorf("%s is number %d, want the first one, %d", certificate.X509.Subject, certificate.Position, first[certificate.X509.Subject.CommonName])
		}
	}
}

func TestAVerdictCountsAndHashesWhatIsAllowed(t *testing.T) {
	a, b := bundletest.Named(t, "a"), bundletest.Named(t, "b")
	text := bundletest.Bundle(a, b, a)
	for name, c := range map[string]struct {
		old, new     []byte
		certificates int
		sum          string
	}{
		"a creation":                      {nil, text, 2, parsed(t, a, b).Hash()},
		"a change":                        {a.PEM, text, 2, parsed(t, b, a).Hash()},
		"the same bytes":                  {text, text, 2, parsed(t, a, b).Hash()},
		"the same bytes, not well-formed": {text[1:], text[1:], 0, ""},
		"a refusal":                       {text, b.PEM, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := bundle.Review(c.old, c.new, bundletest.At(), nil)
			if v.Certificates() != c.certificates || v.SHA256() != c.sum {
				t.Errorf("%d certificates with hash %q, want %d with %q", v.Certificates(), v.SHA256(), c.certificates, c.sum)
			}
		})
	}
}

func TestNothingIsTheSameAsNothingOnlyWhereItWasThere(t *testing.T) {
	if v := bundle.Review(nil, nil, bundletest.At(), nil); v.Allowed || !slices.Equal(codes(v.Reasons), []bundle.Code{bundle.MissingBundle}) {
		t.Errorf("a creation of nothing: allowed %v, reasons %v", v.Allowed, v.Reasons)
	}
	if v := bundle.Review([]byte{}, nil, bundletest.At(), nil); !v.Allowed {
		t.Errorf("nothing stays nothing: reasons %v", v.Reasons)
	}
}

func TestADeletionIsRefused(t *testing.T) {
	v := bundle.ReviewDeletion()
	if v.Allowed || len(v.Reasons) != 1 || v.Reasons[0].Code != bundle.Deletion || v.Certificates() != 0 || v.SHA256() != "" {
		t.Errorf("%+v", v)
	}
}
