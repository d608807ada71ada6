package bundle_test

import (
	"bytes"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"strings"
	"testing"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

func TestASubjectIsCutAndHoldsNothingThatATerminalActsOn(t *testing.T) {
	const most = 120
	x := func(n int) string { return strings.Repeat("x", n-len("CN=")) }
	for name, c := range map[string]struct{ name, want string }{
		"a name":                        {"signer", "CN=signer"},
		"one as long as may be":         {x(most), "CN=" + x(most)},
		"one a character longer":        {x(most + 1), "CN=" + x(most) + "…"},
		"one a character shorter":       {x(most - 1), "CN=" + x(most-1)},
		"as long in other letters":      {strings.Repeat("ö", most-3), "CN=" + strings.Repeat("ö", most-3)},
		"longer in other letters":       {strings.Repeat("署", most-2), "CN=" + strings.Repeat("署", most-3) + "…"},
		"other writing":                 {"Köln 署名者 √", "CN=Köln 署名者 √"},
		"an escape":                     {"a\x1b[2Jb", "CN=a?[2Jb"},
		"a line end":                    {"a\nb\r\nc", "CN=a?b??c"},
		"a tab and a bell":              {"a\tb\ac", "CN=a?b?c"},
		"a C1 control":                  {"a\u009b2Jb", "CN=a?2Jb"},
		"text turned around":            {"a\u202egp.exe", "CN=a?gp.exe"},
		"an isolate":                    {"a\u2066b\u2069", "CN=a?b?"},
		"a zero-width space":            {"a\u200bb", "CN=a?b"},
		"a line separator":              {"a\u2028b", "CN=a?b"},
		"a no-break space":              {"a\u00a0b", "CN=a?b"},
		"a character for lost ones":     {"a\ufffdb", "CN=a?b"},
		"a character for private use":   {"a\ue000b", "CN=a?b"},
		"controls up to the last place": {x(most)[1:] + "\x1b", "CN=" + x(most)[1:] + "?"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := bundletest.Marshal(t, []pkix.RelativeDistinguishedNameSET{{{
				Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(c.name)},
			}}})
			ca := bundletest.NewCA(t, bundletest.Spec{RawSubject: raw})
			if got := parsed(t, ca).Certificates[0].Subject(); got != c.want {
				t.Errorf("subject %q, want %q", got, c.want)
			}
			v := bundle.Review(nil, bytes.Repeat(ca.PEM, 2), bundletest.At(), nil)
			if len(v.Warnings) != 1 || v.Warnings[0].Subject != c.want || !strings.Contains(v.Warnings[0].Message, fmt.Sprintf("%q", c.want)) {
				t.Errorf("warnings %+v, want one about %q", v.Warnings, c.want)
			}
		})
	}
}

func TestAFindingNamesItsPlace(t *testing.T) {
	a, b := bundletest.Named(t, "a"), bundletest.Named(t, "b")
	leaf := bundletest.NewCA(t, bundletest.Spec{Name: "leaf", Extensions: []pkix.Extension{bundletest.BasicConstraints(t, false, -1)}})
	text := "# three blocks, and two that are faults\n" + string(bundletest.Bundle(a, a)) + block("X509 CRL", []byte("x")) + string(bundletest.Bundle(leaf, b))
	v := reviewNew(text)
	if len(v.Reasons) != 2 || len(v.Warnings) != 1 {
		t.Fatalf("reasons %v, warnings %v", v.Reasons, v.Warnings)
	}
	crl, notCA, duplicate := v.Reasons[0], v.Reasons[1], v.Warnings[0]
	if crl.Code != bundle.UnexpectedBlock || crl.Position != 3 || !strings.HasPrefix(crl.Message, "block 3: ") || crl.Subject != "" || !crl.Fingerprint.IsZero() {
		t.Errorf("the finding about the CRL is %+v", crl)
	}
	fingerprint := bundle.Hash(leaf.Certificate.Raw)
	if notCA.Code != bundle.NotCA || notCA.Position != 4 || notCA.Subject != "CN=leaf" || notCA.Fingerprint.String() != fingerprint ||
		!strings.HasPrefix(notCA.Message, `certificate 4 ("CN=leaf", sha256 `+fingerprint+`): not a CA`) {
		t.Errorf("the finding about the leaf is %+v", notCA)
	}
	if duplicate.Code != bundle.Duplicate || duplicate.Position != 2 || !strings.Contains(duplicate.Message, "the same certificate as number 1;") {
		t.Errorf("the finding about the duplicate is %+v", duplicate)
	}
	if v := reviewNew("nothing"); len(v.Reasons) != 1 || v.Reasons[0].Position != 0 {
		t.Errorf("reasons %+v are about a block", v.Reasons)
	}
}

// oneFault expects that a text has one fault of that code, and that its message holds that.
func oneFault(t *testing.T, text string, code bundle.Code, message string) {
	t.Helper()
	_, findings := bundle.Parse([]byte(text))
	if len(findings) != 1 || findings[0].Code != code || !strings.Contains(findings[0].Message, message) {
		t.Errorf("findings %v, want one %s with %q", findings, code, message)
	}
}

func TestAMessageSaysWhatIsWrongWithAMarker(t *testing.T) {
	f := newFixture(t)
	const (
		literal   = `its line breaks are the two characters \n`
		returns   = "its line ends are carriage returns alone"
		share     = "a BEGIN and an END share it"
		unseen    = "it holds an invisible character"
		beyond    = "its dashes or spaces are not the plain ones of ASCII"
		indented  = "it is indented"
		before    = "something stands before it"
		otherwise = "it needs capitals, exactly five dashes on either side, and nothing else"
	)
	for instead, want := range map[string]string{
		begin + `\n`:                          literal,
		begin + `\nMII` + "\r" + end:          literal,
		"-----BEGIN CERTIFICATE-----\rMII\r-": returns,
		"\r" + begin:                          returns,
		" " + begin + "\rx":                   returns,
		end + begin:                           share,
		end + "\u200b" + begin:                share,
		begin + end + begin:                   share,
		begin + " END x":                      share,
		begin + " end x":                      share,
		"\ufeff" + begin:                      unseen,
		begin + "\u200b":                      unseen,
		"-----BEG\u00adIN CERTIFICATE-----":   unseen,
		"-----BEG\u0301IN CERTIFICATE-----":   unseen,
		"-----BEG\u20ddIN CERTIFICATE-----":   unseen,
		"-----BEG\u115fIN CERTIFICATE-----":   unseen,
		"-----BEG\u1160IN CERTIFICATE-----":   unseen,
		"-----BEG\u3164IN CERTIFICATE-----":   unseen,
		"-----BEG\uffa0IN CERTIFICATE-----":   unseen,
		"-----BEG\x01IN CERTIFICATE-----":     unseen,
		"-----BEG\x7fIN CERTIFICATE-----":     unseen,
		" \u200b" + begin:                     unseen,
		"–––––BEGIN CERTIFICATE–––––":         beyond,
		"−−−BEGIN CERTIFICATE−−−":             beyond,
		"⁃⁃BEGIN CERTIFICATE⁃⁃":               beyond,
		"──BEGIN CERTIFICATE──":               beyond,
		"━━BEGIN CERTIFICATE━━":               beyond,
		"ーーBEGIN CERTIFICATEーー":               beyond,
		"－－－BEGIN CERTIFICATE－－－":             beyond,
		"-----ＢＥＧＩＮ CERTIFICATE-----":         beyond,
		"-----ｂｅｇｉｎ ＣＥＲＴＩＦＩＣＡＴＥ-----":         beyond,
		"-----BEGIN\u00a0CERTIFICATE-----":    beyond,
		"\u00a0" + begin:                      beyond,
		"\u3000-----BEGIN CERTIFICATE-----":   beyond,
		"\x80" + begin:                        beyond,
		" " + begin:                           indented,
		"\t" + begin:                          indented,
		"  BEGIN CERTIFICATE-----":            indented,
		"x" + begin:                           before,
		"> " + begin:                          before,
		"BEGIN CERTIFICATE-----":              before,
		`"` + begin + `"`:                     before,
		"BEGIN CERTIFICATE----":               otherwise,
		"----BEGIN CERTIFICATE----":           otherwise,
		"------BEGIN CERTIFICATE------":       otherwise,
		"-----begin certificate-----":         otherwise,
		"-----BEGIN CERTIFICATE----- x":       otherwise,
		"-----BEGIN  CERTIFICATE":             otherwise,
		"-----BEGIN":                          otherwise,
		"-----BEGIN\x00CERTIFICATE-----":      otherwise,
		"--BEGIN CERTIFICATE--":               otherwise,
		"-- begin Zertifikat (certificate)":   otherwise,
		"---BEGIN---":                         otherwise,
	} {
		t.Run(instead, func(t *testing.T) {
			oneFault(t, f.first+instead+strings.TrimPrefix(f.second, begin), bundle.BrokenPEM,
				fmt.Sprintf("block 2: line %d is not a marker as parsers read one: %s", strings.Count(f.first, "\n")+1, want))
		})
	}
}

func TestAMessageCountsLines(t *testing.T) {
	f := newFixture(t)
	lines := strings.Count(f.first, "\n")
	body := strings.Split(f.second, "\n")[1]
	for name, c := range map[string]struct{ text, want string }{
		"an END line without a BEGIN line": {f.first + "#\n" + end + "\n" + f.second, fmt.Sprintf("block 2: an END line on line %d has no BEGIN line before it", lines+2)},
		"an END line first":                {end + "\n" + f.both, "block 1: an END line on line 1 has no BEGIN line before it"},
		"a BEGIN line too many":            {f.first + begin + "\n" + f.second, fmt.Sprintf("block 2: its END line is missing before the next BEGIN on line %d", lines+2)},
		"an END line of another type":      {"\n\n" + replaced(t, f.both, end, "-----END X509 CRL-----"), fmt.Sprintf("block 1: its END line, line %d, names another type", lines+2)},
		"no END line at all":               {f.first + strings.Replace(f.second, end, "", 1), "block 2: its END line is missing: the block is cut short"},
		"no END line and no line end":      {f.first + begin, "block 2: its END line is missing: the block is cut short"},
		"base64 on its own":                {f.first + "\n" + body + "\n" + body + "\n\n" + f.second, fmt.Sprintf("line %d, outside of any block, holds base64", lines+2)},
		"base64 at the end":                {f.both + body, fmt.Sprintf("line %d, outside of any block, holds base64", 2*lines+1)},
		"binary data":                      {f.first + "a\x00\n", fmt.Sprintf("line %d, outside of any block, holds binary data", lines+1)},
		"with Windows line ends":           {strings.ReplaceAll(f.first+f.second+body+"\n", "\n", "\r\n"), fmt.Sprintf("line %d, outside of any block, holds base64", 2*lines+1)},
	} {
		t.Run(name, func(t *testing.T) { oneFault(t, c.text, bundle.BrokenPEM, c.want) })
	}
}

func TestAFaultIsReportedOnceHoweverLongItIs(t *testing.T) {
	f := newFixture(t)
	body := strings.Split(f.second, "\n")[1] + "\n"
	for name, c := range map[string]struct {
		text  string
		wants []string
	}{
		"stray lines in two places":       {f.first + body + body + "\n" + body + "# and\n" + body + f.second, []string{"holds base64", "holds base64", "holds base64"}},
		"stray lines before and behind":   {body + f.first + body + f.second + body, []string{"line 1,", "outside", "outside"}},
		"a block of lost markers":         {f.first + "--BEGIN CERTIFICATE--\n" + body + "--END CERTIFICATE--\n" + f.second, []string{"block 2: line"}},
		"two of them":                     {strings.Repeat("--BEGIN CERTIFICATE--\n"+body+"--END CERTIFICATE--\n", 2), []string{"block 1: line 1 ", "block 2: line 4 "}},
		"one that ends well":              {f.first + "--BEGIN CERTIFICATE--\n" + body + end + "\n" + body, []string{"block 2: line", "holds base64"}},
		"one that never ends":             {f.first + "--BEGIN CERTIFICATE--\n" + body, []string{"block 2: line"}},
		"one that another follows":        {f.first + "--BEGIN CERTIFICATE--\n" + body + f.second, []string{"block 2: line"}},
		"joined markers and a good block": {end + begin + "\n" + body + end + "\n" + f.first, []string{"block 1: line 1 "}},
		"an END line of another type":     {begin + "\n" + body + "-----END X-----\n" + body + f.first, []string{"block 1: its END line", "holds base64"}},
		"a key that is cut short":         {"-----BEGIN PRIVATE KEY-----\n" + body, []string{"block 1: a private key", "block 1: its END line"}},
		"a key of almost markers":         {" -----BEGIN PRIVATE KEY-----\n" + body + " -----END PRIVATE KEY-----\n", []string{"block 1: a private key", "block 1: line 1 "}},
		"an END line of a key":            {"-----END PRIVATE KEY-----\n" + f.first, []string{"block 1: a private key", "block 1: an END line"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, findings := bundle.Parse([]byte(c.text))
			if len(findings) != len(c.wants) {
				t.Fatalf("findings %v, want %q", findings, c.wants)
			}
			for i, want := range c.wants {
				if !strings.Contains(findings[i].Message, want) {
					t.Errorf("finding %d is %q, want %q in it", i, findings[i].Message, want)
				}
			}
		})
	}
}
