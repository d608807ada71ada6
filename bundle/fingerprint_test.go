package bundle_test

import (
	"slices"
	"strings"
	"testing"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

const digits = "97da350ccd15d9f557cec6cc2a2bf326fa1eca2430cae56c9c6b971b06ca2ecc"

// colons writes hexadecimal digits as OpenSSL does.
func colons(digits string) string {
	var bytes []string
	for pair := range slices.Chunk([]byte(strings.ToUpper(digits)), 2) {
		bytes = append(bytes, string(pair))
	}
	return strings.Join(bytes, ":")
}

func TestAFingerprintIsReadInEverySpelling(t *testing.T) {
	for name, text := range map[string]string{
		"as messages show it":              digits,
		"in capitals":                      strings.ToUpper(digits),
		"with colons":                      colons(digits),
		"with colons and in small letters": strings.ToLower(colons(digits)),
		"with spaces":                      strings.ReplaceAll(colons(digits), ":", " "),
		"between blanks and line ends":     " \t" + digits + "\r\n",
		"behind sha256:":                   "sha256:" + digits,
		"behind SHA256: and a space":       "SHA256: " + colons(digits),
		"behind sha256 and a space":        "sha256 " + digits,
		"behind sha256=":                   "sha256=" + digits,
		"of openssl":                       "sha256 Fingerprint=" + colons(digits) + "\n",
		"of an older openssl":              "SHA256 Fingerprint=" + colons(digits),
		"with a space behind the sign":     "sha256 Fingerprint = " + colons(digits),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := bundle.ParseFingerprint(text)
			if err != nil || got.String() != digits {
				t.Errorf("%q is read as %s: %v", text, got, err)
			}
			if allowed, err := bundle.ParseAllowances(text); err != nil || len(allowed) != 1 {
				t.Errorf("%q allows %v: %v", text, allowed, err)
			}
		})
	}
}

func TestWhatIsNoFingerprintIsRefused(t *testing.T) {
	sha1 := digits[:40]
	for name, c := range map[string]struct{ text, hint string }{
		"a digit short":                   {digits[:63], "SHA-256 fingerprint of 64 hexadecimal digits"},
		"a byte short":                    {digits[:62], "SHA-256 fingerprint of 64 hexadecimal digits"},
		"a digit more":                    {digits + "0", "SHA-256 fingerprint of 64 hexadecimal digits"},
		"a byte more":                     {digits + "00", "SHA-256 fingerprint of 64 hexadecimal digits"},
		"no digit":                        {digits[:63] + "g", "SHA-256 fingerprint of 64 hexadecimal digits"},
		"SHA-1":                           {colons(sha1), "length of a SHA-1 fingerprint"},
		"SHA-1 as openssl prints it":      {"SHA1 Fingerprint=" + colons(sha1), "SHA-256 fingerprint of 64 hexadecimal digits"},
		"as long as SHA-1, but no digits": {strings.Repeat("x", 40), "SHA-256 fingerprint of 64 hexadecimal digits"},
		"two digits short of SHA-1":       {sha1[:38], "SHA-256 fingerprint of 64 hexadecimal digits"},
		"a prefix alone":                  {"sha256:", "SHA-256 fingerprint of 64 hexadecimal digits"},
		"a prefix behind":                 {digits + "sha256:", "SHA-256 fingerprint of 64 hexadecimal digits"},
		"a name":                          {"signer", "SHA-256 fingerprint of 64 hexadecimal digits"},
		"other dashes":                    {strings.ReplaceAll(colons(digits), ":", "-"), "SHA-256 fingerprint of 64 hexadecimal digits"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := bundle.ParseFingerprint(c.text)
			if err == nil || !got.IsZero() || !strings.Contains(err.Error(), c.hint) {
				t.Errorf("%q is read as %s: %v, want %q", c.text, got, err, c.hint)
			}
			if allowed, err := bundle.ParseAllowances(c.text); err == nil {
				t.Errorf("%q allows %v", c.text, allowed)
			}
		})
	}
	if _, err := bundle.ParseFingerprint(""); err == nil {
		t.Error("nothing is read as a fingerprint")
	}
}

func TestAMessageRepeatsOnlySoMuchOfWhatWasWritten(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		cut  bool
	}{
		"a hundred characters":       {strings.Repeat("x", 100), false},
		"a hundred and one":          {strings.Repeat("x", 101), true},
		"a hundred of several bytes": {strings.Repeat("ö", 100), false},
		"a hundred and one of those": {strings.Repeat("ö", 101), true},
		"a line of ten thousand":     {strings.Repeat("x", 10_000), true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := bundle.ParseFingerprint(c.text)
			if err == nil {
				t.Fatal("it is read as a fingerprint")
			}
			whole, cut := strings.Contains(err.Error(), `"`+c.text+`"`), strings.Contains(err.Error(), string([]rune(c.text)[:min(100, len([]rune(c.text)))])+`…"`)
			if whole == c.cut || cut != c.cut {
				t.Errorf("cut: %v, want %v: %v", cut, c.cut, err)
			}
		})
	}
}

func TestAllowancesAreReadWithAnySeparator(t *testing.T) {
	a, b := digits, strings.Repeat("0f", 32)
	for name, text := range map[string]string{
		"a comma":                           a + "," + b,
		"a comma and a space":               a + ", " + b,
		"a semicolon":                       a + ";" + b,
		"a line end":                        a + "\n" + b,
		"a Windows line end":                a + "\r\n" + b,
		"a space":                           a + " " + b,
		"a tab":                             a + "\t" + b,
		"several":                           "\n, " + a + " ,;\n " + b + ",\n",
		"one of them twice":                 a + "," + b + "," + strings.ToUpper(a),
		"both with spaces":                  strings.ReplaceAll(colons(a), ":", " ") + "," + strings.ReplaceAll(colons(b), ":", " "),
		"openssl's lines":                   "sha256 Fingerprint=" + colons(a) + "\nsha256 Fingerprint=" + colons(b) + "\n",
		"openssl's lines joined by a space": "sha256 Fingerprint=" + colons(a) + " sha256 Fingerprint=" + colons(b),
		"a prefix each, and a space":        "sha256:" + a + " SHA256: " + colons(b),
	} {
		t.Run(name, func(t *testing.T) {
			allowed, err := bundle.ParseAllowances(text)
			if err != nil || len(allowed) != 2 {
				t.Fatalf("%q allows %v: %v", text, allowed, err)
			}
			for _, want := range []string{a, b} {
				f, err := bundle.ParseFingerprint(want)
				if err != nil {
					t.Fatal(err)
				}
				if _, found := allowed[f]; !found {
					t.Errorf("%q allows %v, not %s", text, allowed, want)
				}
			}
		})
	}
}

func TestHalfUnderstoodAllowancesNameEveryFault(t *testing.T) {
	_, err := bundle.ParseAllowances("first," + digits + " second;" + digits[:40] + "\nthird third")
	if err == nil {
		t.Fatal("they are understood")
	}
	for _, want := range []string{`"first"`, `"second"`, `"` + digits[:40] + `"`, `"third"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	if got := strings.Count(err.Error(), "\n") + 1; got != 5 {
		t.Errorf("%d faults, want 5: %v", got, err)
	}
	for _, nothing := range []string{"", " ", ",;\r\n", " , "} {
		if allowed, err := bundle.ParseAllowances(nothing); err != nil || len(allowed) != 0 {
			t.Errorf("%q allows %v: %v", nothing, allowed, err)
		}
	}
}

func TestAnAllowanceThatNamesNothingIsUnknown(t *testing.T) {
	a, b, c := bundletest.Named(t, "a"), bundletest.Named(t, "b"), bundletest.Named(t, "c")
	var all []bundle.Fingerprint
	for _, certificate := range bundle.Merge(parsed(t, a, b, c)).Certificates {
		all = append(all, certificate.Fingerprint)
	}
	of := func(fingerprints ...bundle.Fingerprint) bundle.Allowances {
		allowed := bundle.Allowances{}
		for _, f := range fingerprints {
			allowed[f] = struct{}{}
		}
		return allowed
	}
	broken := append([]byte("  "), bundletest.Bundle(a, b)...) // b can still be read
	for name, c := range map[string]struct {
		allowed bundle.Allowances
		bundles [][]byte
		want    []bundle.Fingerprint
	}{
		"none":                           {nil, [][]byte{a.PEM}, nil},
		"one, and no bundle":             {of(all[0]), nil, all[:1]},
		"one, in the only bundle":        {of(all[0]), [][]byte{a.PEM}, nil},
		"one, in the first":              {of(all[0]), [][]byte{a.PEM, b.PEM}, nil},
		"one, in the last":               {of(all[1]), [][]byte{a.PEM, b.PEM}, nil},
		"one, in neither":                {of(all[2]), [][]byte{a.PEM, b.PEM}, all[2:]},
		"three, each somewhere":          {of(all...), [][]byte{a.PEM, nil, bundletest.Bundle(c, b)}, nil},
		"three, two of them nowhere":     {of(all...), [][]byte{b.PEM}, []bundle.Fingerprint{all[0], all[2]}},
		"one that can still be read":     {of(all[1]), [][]byte{broken}, nil},
		"one that can no longer be read": {of(all[0]), [][]byte{broken}, all[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			slices.SortFunc(c.want, func(x, y bundle.Fingerprint) int { return strings.Compare(x.String(), y.String()) })
			before := len(c.allowed)
			if got := c.allowed.Unknown(c.bundles...); !slices.Equal(got, c.want) {
				t.Errorf("unknown are %v, want %v", got, c.want)
			}
			if len(c.allowed) != before {
				t.Error("asking changes what is allowed")
			}
		})
	}
}

func TestOnlyTheZeroFingerprintIsZero(t *testing.T) {
	if !(bundle.Fingerprint{}).IsZero() || (bundle.Fingerprint{31: 1}).IsZero() || (bundle.Fingerprint{0: 1}).IsZero() {
		t.Error("the zero fingerprint is not told from others")
	}
	if got := (bundle.Fingerprint{0: 0xab, 31: 1}).String(); got != "ab"+strings.Repeat("00", 30)+"01" {
		t.Errorf("a fingerprint is written as %s", got)
	}
}
