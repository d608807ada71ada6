package bundle_test

import (
	"bytes"
	"slices"
	"testing"

	"k8s.io/client-go/util/cert"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

// checkAgainstKubelet compares an allowed bundle with what the kubelet's own parser loads of it, and sees that the
// canonical form is one that a review leaves as it is.
func checkAgainstKubelet(t *testing.T, text []byte, v bundle.Verdict) {
	t.Helper()
	if v.Allowed != (len(v.Reasons) == 0) {
		t.Fatalf("allowed %v with reasons %v", v.Allowed, v.Reasons)
	}
	if !v.Allowed {
		return
	}
	loaded, err := cert.ParseCertsPEM(text)
	if err != nil {
		t.Fatalf("the gate allows what the kubelet refuses: %v", err)
	}
	parsed, findings := bundle.Parse(text)
	if len(findings) > 0 {
		t.Fatalf("allowed with findings %v", findings)
	}
	if len(loaded) != len(parsed.Certificates) {
		t.Fatalf("the kubelet loads %d certificates, the gate %d", len(loaded), len(parsed.Certificates))
	}
	distinct := map[string]struct{}{}
	for i, c := range loaded {
		if !bytes.Equal(c.Raw, parsed.Certificates[i].X509.Raw) {
			t.Fatalf("the kubelet loads another certificate %d than the gate", i+1)
		}
		distinct[string(c.Raw)] = struct{}{}
	}
	if len(distinct) != v.Certificates() {
		t.Fatalf("the kubelet loads %d distinct certificates, the gate counts %d", len(distinct), v.Certificates())
	}
	canonical := parsed.Canonical()
	again, findings := bundle.Parse(canonical)
	if len(findings) > 0 || !bytes.Equal(again.Canonical(), canonical) || !bundle.SameSet(parsed, again) {
		t.Fatalf("the canonical form is not stable: %v", findings)
	}
	if w := bundle.Review(text, canonical, bundletest.At(), nil); !w.Allowed || w.SHA256() != v.SHA256() || w.Certificates() != v.Certificates() {
		t.Fatalf("a review of the canonical form differs: %+v, before %+v", w, v)
	}
}

// FuzzReviewAgainstTheKubeletsParser takes any text: what the gate allows, the kubelet loads, and exactly that.
func FuzzReviewAgainstTheKubeletsParser(f *testing.F) {
	for _, c := range loadCases(f) {
		f.Add(c.old, c.new)
	}
	f.Fuzz(func(t *testing.T, old, text []byte) {
		checkAgainstKubelet(t, text, bundle.Review(nil, text, bundletest.At(), nil))
		// What is there already stays allowed whatever it is; a change never panics.
		if v := bundle.Review(text, text, bundletest.At(), nil); text != nil && !v.Allowed {
			t.Fatalf("unchanged bytes are denied: %v", v.Reasons)
		}
		if v := bundle.Review(old, text, bundletest.At(), nil); !v.Allowed && len(v.Reasons) == 0 {
			t.Fatal("denied without a reason")
		}
	})
}

// FuzzNoEditLosesACertificate inserts any text anywhere into a good bundle, over as many bytes as it says: what is still
// allowed still has every certificate that was not overwritten.
func FuzzNoEditLosesACertificate(f *testing.F) {
	var good []byte
	for _, c := range loadCases(f) {
		switch {
		case c.Name == "rotation-adds-signer":
			good = c.new
		case len(c.new) < 64:
			f.Add(c.new, uint16(3))
		}
	}
	for _, s := range []string{"\ufeff", "\u200b", "\n", "\r", " ", "\t", "-", "x", "# comment\n", "\x00", "-----END CERTIFICATE-----\n",
		"-----BEGIN CERTIFICATE-----\n", "A: b\n\n", "—", "=", "\\n", "-----BEGIN PRIVATE KEY-----\n", "SD0GabHpsHf8UAs="} {
		for _, at := range []int{0, 1, 12, 27, 28, 29, 60, 92, 93, len(good) / 2, len(good) - 1, len(good)} {
			f.Add([]byte(s), uint16(at))
		}
	}
	base, _ := bundle.Parse(good)
	f.Fuzz(func(t *testing.T, inserted []byte, at uint16) {
		i := int(at) % (len(good) + 1)
		text := slices.Concat(good[:i], inserted, good[i:])
		v := bundle.Review(nil, text, bundletest.At(), nil)
		checkAgainstKubelet(t, text, v)
		if parsed, _ := bundle.Parse(text); v.Allowed && len(bundle.Missing(base, parsed)) > 0 {
			t.Fatalf("a certificate is lost without a word by inserting %q at %d", inserted, i)
		}
	})
}

// FuzzFingerprints reads any text as a break-glass annotation.
func FuzzFingerprints(f *testing.F) {
	for _, s := range []string{"", "sha256:97da", "97:DA:35:0C", "a,b;c\nd e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		allowed, err := bundle.ParseAllowances(s)
		if err != nil {
			return
		}
		for fingerprint := range allowed {
			if again, err := bundle.ParseFingerprint(fingerprint.String()); err != nil || again != fingerprint {
				t.Fatalf("%s is read as %s: %v", fingerprint, again, err)
			}
		}
	})
}
