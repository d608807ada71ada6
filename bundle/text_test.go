package bundle_test

import (
	"strings"
	"testing"

	"kubelet-ca-courier/bundle"
)

// TestStretchesOfBase64AreToldFromWords has lines between two good blocks.
func TestStretchesOfBase64AreToldFromWords(t *testing.T) {
	f := newFixture(t)
	word := strings.Repeat("aB3", 20) // capitals, small letters, and what is no letter
	odd := "xY7" + word               // the like, that does not begin or end as hexadecimal digits do
	for name, c := range map[string]struct {
		line   string
		base64 bool
	}{
		"a line of fifteen characters":           {odd[:15], false},
		"a line of sixteen":                      {odd[:16], true},
		"sixteen between blanks":                 {"  " + odd[:16] + "\t", true},
		"fifteen, in two parts by a space":       {odd[:8] + " " + odd[:7], false},
		"sixteen, in two parts by a space":       {odd[:8] + " " + odd[:8], false},
		"sixteen, in two parts by nothing seen":  {odd[:8] + "\u200b" + odd[:8], true},
		"sixteen behind a byte-order mark":       {"\ufeff" + odd[:16], true},
		"eight with padding":                     {odd[:7] + "=", false},
		"nine with a padding that fits":          {odd[:9] + "===", true},
		"eight with a padding that fits":         {odd[:8] + "====", true},
		"ten with a padding that fits":           {odd[:10] + "==", true},
		"ten with a padding that does not":       {odd[:10] + "=", false},
		"eleven with a padding that fits":        {odd[:11] + "=", true},
		"twelve without a padding":               {odd[:12], false},
		"fifteen with a padding that fits":       {odd[:15] + "=", true},
		"fifteen with a padding that does not":   {odd[:15] + "==", false},
		"sixteen with a padding that does not":   {odd[:16] + "=", true},
		"padding alone":                          {"================", false},
		"47 in a line":                           {"# " + odd[:47], false},
		"48 in a line":                           {"# " + odd[:48], true},
		"48 behind a word":                       {"key: " + odd[:48] + " and more", true},
		"48 behind 47":                           {"# " + odd[:47] + " " + odd[:48], true},
		"twice 47 in a line":                     {odd[:47] + " " + odd[:47], false},
		"48 with padding in a line":              {"# " + odd[:48] + "==", true},
		"48 in capitals and digits":              {"# " + strings.ToUpper(odd[:48]), false},
		"48 in small letters and digits":         {"# " + strings.ToLower(odd[:48]), false},
		"64 in capitals":                         {strings.ToUpper(odd + "X"), false},
		"64 in small letters":                    {strings.ToLower(odd + "x"), false},
		"sixteen letters":                        {"KubeletSignerOne", false},
		"sixteen letters and a digit":            {"KubeletSignerOne1", true},
		"sixteen letters and a plus":             {"KubeletSignerOne+", true},
		"sixteen letters and a slash":            {"Kubelet/SignerOne", true},
		"hexadecimal digits, mixed":              {"97dA350cCD15d9f5", false},
		"hexadecimal digits but the first":       {"g7dA350cCD15d9f5", true},
		"hexadecimal digits but the last":        {"97dA350cCD15d9fG", true},
		"hexadecimal digits but one":             {"97dA350cgD15d9f5", true},
		"the first capital":                      {"Axxxxxxxxxxxxxx1", true},
		"the last capital":                       {"Zxxxxxxxxxxxxxx1", true},
		"the first small letter":                 {"XXXXXXXXXXXXXXa1", true},
		"the last small letter":                  {"XXXXXXXXXXXXXXz1", true},
		"the first digit":                        {"XxxxxxxxxxxxxxX0", true},
		"the last digit":                         {"XxxxxxxxxxxxxxX9", true},
		"what comes before the capitals":         {"@Xxxxxxxxxxxxxx1", false},
		"what comes behind the capitals":         {"[Xxxxxxxxxxxxxx1", false},
		"what comes before the small letters":    {"`Xxxxxxxxxxxxxx1", false},
		"what comes behind the small letters":    {"{Xxxxxxxxxxxxxx1", false},
		"what comes before the slash":            {".Xxxxxxxxxxxxxx1", false},
		"what comes behind the digits":           {":Xxxxxxxxxxxxxx1", false},
		"what comes before the plus":             {"*Xxxxxxxxxxxxxx1", false},
		"what comes behind the plus":             {",Xxxxxxxxxxxxxx1", false},
		"letters beyond ASCII":                   {"Kölnäéèñçßøåæœ12", false},
		"a SHA-1 fingerprint in base64":          {"2jmj7l5rSw0yVb/vlWAYkK/YBwk=", true},
		"a line of a public key for SSH":         {"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS me", true},
		"a short word with a sign behind":        {"Name1=", false},
		"a setting":                              {"Verify1=Always2", false},
		"a date and a time":                      {"2026-12-01T12:00:00Z", false},
		"a host":                                 {"api-int.Cluster1.example.com:6443", false},
		"a UUID":                                 {"# 6F9619FF-8B86-D011-B42D-00CF4FC964FF", false},
		"a serial number":                        {"serial=4D2F6B11AA9E00521C4D2F6B11AA9E00521C4D2F", false},
		"bytes in hexadecimal, over many places": {"    00:c1:38:5f:12:77:31:d0:5b:0c:9d:af:e4:06:2e:", false},
	} {
		t.Run(name, func(t *testing.T) {
			text := f.first + c.line + "\n" + f.second
			if c.base64 {
				oneFault(t, text, bundle.BrokenPEM, "holds base64")
				return
			}
			if read, findings := bundle.Parse([]byte(text)); len(findings) > 0 || len(read.Certificates) != 2 {
				t.Errorf("%q: %d certificates, findings %v", c.line, len(read.Certificates), findings)
			}
		})
	}
}

func TestProseIsNoMarker(t *testing.T) {
	f := newFixture(t)
	for _, line := range []string{
		"-- end of 2026", "--- begin of the list", "# BEGIN", "# END", "BEGIN CERTIFICATE", "END CERTIFICATE", "begin", "end",
		"- begin - end -", "-- the certificate", "---- certificates ----", "# ---- CERTIFICATE ----", "----", "-----", "=====",
		"---BEGINNING---", "---ENDING---", "-- BEGINNING", "front-end certificate", "the END of a CERTIFICATE -",
		"APPEND CERTIFICATE --", "WEEKEND KEY --", "END CERTIFICATES, all -x-", "–", "— begin", "end –", "a\u2028b", "…",
		"# BEGIN-CERTIFICATE-----", "-BEGIN CERTIFICATE-",
	} {
		t.Run(line, func(t *testing.T) {
			if read, findings := bundle.Parse([]byte(f.first + line + "\n" + f.second)); len(findings) > 0 || len(read.Certificates) != 2 {
				t.Errorf("%d certificates, findings %v", len(read.Certificates), findings)
			}
		})
	}
}

func TestAMarkerOfEveryLabelIsSeen(t *testing.T) {
	f := newFixture(t)
	for _, line := range []string{
		"-- BEGIN CERTIFICATE", "--END CERT", "-- begin my key", "-- END PKCS7", "--  BEGIN X509 CRL", "-- BEGIN CMS", "-- BEGIN NEW REQUEST",
		"-- BEGIN EC PARAMETERS", "BEGIN CERTIFICATE--", "BEGIN CERTIFICATE --", "x END KEY --", "# END CRL, all --", "END CMS—",
		"---BEGIN", "---END", "---BEGIN---", "---BEGIN FOO", "—–BEGIN FOO", "-----BEGINNING", "-----ENDING", "x---END.", "---END2",
	} {
		t.Run(line, func(t *testing.T) {
			text := f.first + line + "\n"
			_, findings := bundle.Parse([]byte(text))
			if len(findings) == 0 || findings[0].Code != bundle.BrokenPEM && findings[0].Code != bundle.PrivateKey || !strings.HasPrefix(findings[0].Message, "block 2: ") {
				t.Errorf("findings %v, want one about a marker", findings)
			}
		})
	}
}
