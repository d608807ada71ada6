package bundle_test

import (
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"k8s.io/client-go/util/cert"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

// fixture is a pair of ordinary CAs from which the tests make faulty bundles.
type fixture struct {
	first, second, both string
}

func newFixture(t testing.TB) fixture {
	t.Helper()
	first, second := string(bundletest.Named(t, "first").PEM), string(bundletest.Named(t, "second").PEM)
	return fixture{first, second, first + second}
}

const (
	begin = "-----BEGIN CERTIFICATE-----"
	end   = "-----END CERTIFICATE-----"
)

// replaced returns text with the first occurrence of old replaced, which must be there.
func replaced(t testing.TB, text, old, by string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("nothing to replace: %q", old)
	}
	return strings.Replace(text, old, by, 1)
}

// inUTF16 encodes text as some Windows programs save it.
func inUTF16(text string, bigEndian, mark bool) string {
	units := utf16.Encode([]rune(text))
	if mark {
		units = append([]uint16{0xfeff}, units...)
	}
	var out []byte
	for _, unit := range units {
		if bigEndian {
			out = append(out, byte(unit>>8), byte(unit))
		} else {
			out = append(out, byte(unit), byte(unit>>8))
		}
	}
	return string(out)
}

func block(label string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: label, Bytes: der}))
}

// reviewNew judges a bundle that there was none before.
func reviewNew(text string) bundle.Verdict {
	return bundle.Review(nil, []byte(text), bundletest.At(), nil)
}

func TestTextThatParsersLoseIsRefused(t *testing.T) {
	f := newFixture(t)
	der, _ := pem.Decode([]byte(f.first))
	lines := strings.Split(f.first, "\n")
	bodyLine := lines[2]
	for name, c := range map[string]struct {
		text string
		want bundle.Code
	}{
		"a byte-order mark before the first block":         {"\ufeff" + f.both, bundle.BrokenPEM},
		"a byte-order mark before a later block":           {f.first + "\ufeff" + f.second, bundle.BrokenPEM},
		"a byte-order mark before the END line":            {replaced(t, f.both, end, "\ufeff"+end), bundle.BrokenPEM},
		"a byte-order mark in the base64":                  {replaced(t, f.both, bodyLine, "\ufeff"+bodyLine), bundle.BrokenPEM},
		"a zero-width space in a marker":                   {replaced(t, f.both, begin, "-----BEG\u200bIN CERTIFICATE-----"), bundle.BrokenPEM},
		"a zero-width space behind a marker":               {replaced(t, f.both, begin, begin+"\u200b"), bundle.BrokenPEM},
		"a zero-width joiner in the label":                 {replaced(t, f.both, begin, "-----BEGIN CERT\u200dIFICATE-----"), bundle.BrokenPEM},
		"a word joiner before a marker":                    {replaced(t, f.both, begin, "\u2060"+begin), bundle.BrokenPEM},
		"a no-break space in the marker":                   {replaced(t, f.both, begin, "-----BEGIN\u00a0CERTIFICATE-----"), bundle.BrokenPEM},
		"a no-break space before the marker":               {replaced(t, f.both, begin, "\u00a0"+begin), bundle.BrokenPEM},
		"a no-break space behind END":                      {replaced(t, f.both, end, end+"\u00a0"), bundle.BrokenPEM},
		"an ideographic space in the marker":               {replaced(t, f.both, begin, "-----BEGIN\u3000CERTIFICATE-----"), bundle.BrokenPEM},
		"a soft hyphen in the label":                       {replaced(t, f.both, begin, "-----BEGIN CERTI\u00adFICATE-----"), bundle.BrokenPEM},
		"a variation selector behind the marker":           {replaced(t, f.both, begin, begin+"\ufe0f"), bundle.BrokenPEM},
		"a right-to-left mark before the marker":           {replaced(t, f.both, begin, "\u200f"+begin), bundle.BrokenPEM},
		"en dashes":                                        {strings.ReplaceAll(f.first, "-----", "–––––") + f.second, bundle.BrokenPEM},
		"one en dash for five hyphens":                     {strings.ReplaceAll(f.first, "-----", "–") + f.second, bundle.BrokenPEM},
		"em dashes as a word processor makes them":         {strings.ReplaceAll(f.first, "-----", "——-") + f.second, bundle.BrokenPEM},
		"em dashes in the only block":                      {strings.ReplaceAll(f.first, "-----", "—————"), bundle.BrokenPEM},
		"full-width dashes":                                {strings.ReplaceAll(f.first, "-", "－") + f.second, bundle.BrokenPEM},
		"minus signs":                                      {strings.ReplaceAll(f.first, "-----", "−−−−−") + f.second, bundle.BrokenPEM},
		"non-breaking hyphens":                             {strings.ReplaceAll(f.first, "-----", "‑‑‑‑‑") + f.second, bundle.BrokenPEM},
		"full-width letters":                               {replaced(t, f.both, begin, "-----ＢＥＧＩＮ CERTIFICATE-----"), bundle.BrokenPEM},
		"dashes in the END line alone":                     {replaced(t, f.both, end, "–––––END CERTIFICATE–––––"), bundle.BrokenPEM},
		"markers in small letters":                         {strings.ToLower(begin) + strings.TrimPrefix(f.first, begin) + f.second, bundle.BrokenPEM},
		"all markers in small letters":                     {strings.NewReplacer(begin, strings.ToLower(begin), end, strings.ToLower(end)).Replace(f.first), bundle.BrokenPEM},
		"a label in small letters":                         {strings.ReplaceAll(f.first, "CERTIFICATE", "certificate") + f.second, bundle.BrokenPEM},
		"four dashes":                                      {strings.ReplaceAll(f.first, "-----", "----") + f.second, bundle.BrokenPEM},
		"six dashes":                                       {strings.ReplaceAll(f.first, "-----", "------") + f.second, bundle.BrokenPEM},
		"four dashes before BEGIN":                         {replaced(t, f.both, begin, "----BEGIN CERTIFICATE-----"), bundle.BrokenPEM},
		"four dashes behind BEGIN":                         {replaced(t, f.both, begin, "-----BEGIN CERTIFICATE----"), bundle.BrokenPEM},
		"six dashes before BEGIN":                          {replaced(t, f.both, begin, "------BEGIN CERTIFICATE-----"), bundle.BrokenPEM},
		"six dashes behind BEGIN":                          {replaced(t, f.both, begin, "-----BEGIN CERTIFICATE------"), bundle.BrokenPEM},
		"four dashes behind END":                           {replaced(t, f.both, end, "-----END CERTIFICATE----"), bundle.BrokenPEM},
		"six dashes behind END":                            {replaced(t, f.both, end, "-----END CERTIFICATE------"), bundle.BrokenPEM},
		"no dashes before BEGIN":                           {replaced(t, f.both, begin, "BEGIN CERTIFICATE-----"), bundle.BrokenPEM},
		"no space behind BEGIN":                            {replaced(t, f.both, begin, "-----BEGINCERTIFICATE-----"), bundle.BrokenPEM},
		"two spaces behind BEGIN":                          {replaced(t, f.both, begin, "-----BEGIN  CERTIFICATE-----"), bundle.BrokenPEM},
		"spaces within the dashes":                         {strings.NewReplacer(begin, "----- BEGIN CERTIFICATE -----", end, "----- END CERTIFICATE -----").Replace(f.first) + f.second, bundle.BrokenPEM},
		"a space behind the label":                         {strings.ReplaceAll(f.first, "CERTIFICATE", "CERTIFICATE ") + f.second, bundle.BrokenPEM},
		"END and BEGIN joined":                             {strings.Replace(f.both, end+"\n", end, 1), bundle.BrokenPEM},
		"END and BEGIN joined by a space":                  {strings.Replace(f.both, end+"\n", end+" ", 1), bundle.BrokenPEM},
		"a BEGIN within a block":                           {replaced(t, f.both, bodyLine, begin+"\n"+bodyLine), bundle.BrokenPEM},
		"BEGIN twice":                                      {begin + "\n" + f.both, bundle.BrokenPEM},
		"END twice":                                        {f.both + end + "\n", bundle.BrokenPEM},
		"an END line first":                                {end + "\n" + f.both, bundle.BrokenPEM},
		"no END line":                                      {replaced(t, f.both, end+"\n", ""), bundle.BrokenPEM},
		"no last END line":                                 {strings.TrimSuffix(f.both, end+"\n"), bundle.BrokenPEM},
		"no BEGIN line":                                    {strings.TrimPrefix(f.both, begin+"\n"), bundle.BrokenPEM},
		"neither BEGIN nor END of one block":               {strings.TrimSuffix(strings.TrimPrefix(f.first, begin+"\n"), end+"\n") + f.second, bundle.BrokenPEM},
		"an END line of another type":                      {replaced(t, f.both, end, "-----END X509 CRL-----"), bundle.BrokenPEM},
		"an END line without a type":                       {replaced(t, f.both, end, "-----END-----"), bundle.BrokenPEM},
		"cut in the middle of the END line":                {strings.TrimSuffix(f.both, "FICATE-----\n"), bundle.BrokenPEM},
		"cut in the middle of the BEGIN line":              {f.first + "-----BEGIN CERT", bundle.BrokenPEM},
		"cut behind the dashes of BEGIN":                   {f.first + "-----BEGIN", bundle.BrokenPEM},
		"stray base64 between the blocks":                  {f.first + bodyLine + "\n" + f.second, bundle.BrokenPEM},
		"stray base64 behind the blocks":                   {f.both + bodyLine, bundle.BrokenPEM},
		"stray base64 before the blocks":                   {bodyLine + "\n" + f.both, bundle.BrokenPEM},
		"stray base64 behind END":                          {replaced(t, f.both, end, end+bodyLine), bundle.BrokenPEM},
		"stray base64 in a comment":                        {"# " + bodyLine + "\n" + f.both, bundle.BrokenPEM},
		"stray base64 in a quotation":                      {"> " + bodyLine + "\n" + f.both, bundle.BrokenPEM},
		"stray base64 with a padding":                      {f.first + "SD0GabHpsHf8UAs=\n" + f.second, bundle.BrokenPEM},
		"a commented-out block":                            {"# " + strings.ReplaceAll(f.first, "\n", "\n# ") + "\n" + f.second, bundle.BrokenPEM},
		"a quoted block":                                   {"> " + strings.ReplaceAll(f.first, "\n", "\n> ") + "\n" + f.second, bundle.BrokenPEM},
		"garbage behind END":                               {replaced(t, f.both, end, end+" x"), bundle.BrokenPEM},
		"garbage behind BEGIN":                             {replaced(t, f.both, begin, begin+"x"), bundle.BrokenPEM},
		"garbage before BEGIN":                             {"x" + f.both, bundle.BrokenPEM},
		"DER behind the blocks":                            {f.both + string(der.Bytes), bundle.BrokenPEM},
		"UTF-16 behind the blocks":                         {f.first + inUTF16(f.second, false, false), bundle.BrokenPEM},
		"the first block indented":                         {"  " + strings.ReplaceAll(strings.TrimSpace(f.first), "\n", "\n  ") + "\n" + f.second, bundle.BrokenPEM},
		"a later block indented by a tab":                  {f.first + "\t" + strings.ReplaceAll(strings.TrimSpace(f.second), "\n", "\n\t") + "\n", bundle.BrokenPEM},
		"the END line indented":                            {replaced(t, f.both, end, " "+end), bundle.BrokenPEM},
		"a form feed before BEGIN":                         {"\f" + f.both, bundle.BrokenPEM},
		"a form feed behind END":                           {replaced(t, f.both, end, end+"\f"), bundle.BrokenPEM},
		"a vertical tab in the base64":                     {replaced(t, f.both, bodyLine, "\v"+bodyLine), bundle.BrokenPEM},
		"carriage returns for line ends":                   {strings.ReplaceAll(f.both, "\n", "\r"), bundle.BrokenPEM},
		"two carriage returns behind BEGIN":                {replaced(t, f.both, begin, begin+"\r\r"), bundle.BrokenPEM},
		"line separators of Unicode for line ends":         {strings.ReplaceAll(f.both, "\n", "\u2028"), bundle.BrokenPEM},
		`line ends as the characters \n`:                   {strings.ReplaceAll(f.both, "\n", `\n`), bundle.BrokenPEM},
		`line ends as the characters \n in one block`:      {f.first + strings.ReplaceAll(f.second, "\n", `\n`), bundle.BrokenPEM},
		`line ends as the characters \r\n`:                 {strings.ReplaceAll(f.both, "\n", `\r\n`), bundle.BrokenPEM},
		"no line ends":                                     {strings.ReplaceAll(f.both, "\n", ""), bundle.BrokenPEM},
		"spaces for line ends":                             {strings.ReplaceAll(f.both, "\n", " "), bundle.BrokenPEM},
		"no line end before END":                           {replaced(t, f.both, "\n"+end, end), bundle.BrokenPEM},
		"no line end behind BEGIN":                         {replaced(t, f.both, begin+"\n", begin), bundle.BrokenPEM},
		"quotation marks around all":                       {`"` + strings.TrimSpace(f.both) + `"`, bundle.BrokenPEM},
		"a NUL in a marker":                                {replaced(t, f.both, begin, "-----BEGIN\x00CERTIFICATE-----"), bundle.BrokenPEM},
		"a NUL in the base64":                              {replaced(t, f.both, bodyLine, "\x00"+bodyLine), bundle.BrokenPEM},
		"a NUL behind the blocks":                          {f.both + "\x00", bundle.BrokenPEM},
		"a damaged character in the base64":                {replaced(t, f.both, bodyLine, "!"+bodyLine[1:]), bundle.BrokenPEM},
		"base64 for URLs":                                  {replaced(t, f.both, bodyLine, "_"+bodyLine[1:]), bundle.BrokenPEM},
		"a missing character in the base64":                {replaced(t, f.both, bodyLine, bodyLine[1:]), bundle.BrokenPEM},
		"padding in the middle of the base64":              {replaced(t, f.both, bodyLine, "==="+bodyLine[3:]), bundle.BrokenPEM},
		"a private key that is cut short":                  {f.both + "-----BEGIN PRIVATE KEY-----\nMII", bundle.PrivateKey},
		"a private key that is indented":                   {f.both + "  -----BEGIN RSA PRIVATE KEY-----\n  MIIB\n  -----END RSA PRIVATE KEY-----\n", bundle.PrivateKey},
		"a private key of SSH2":                            {f.both + "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nP2/56w==\n---- END SSH2 ENCRYPTED PRIVATE KEY ----\n", bundle.PrivateKey},
		"a certificate with headers":                       {replaced(t, f.both, begin, begin+"\nProc-Type: 4,CLEAR\n"), bundle.PEMHeaders},
		"a certificate with a header and no blank line":    {replaced(t, f.both, begin, begin+"\nX-Note: mine"), bundle.PEMHeaders},
		"an empty block":                                   {f.both + begin + "\n" + end + "\n", bundle.BadCertificate},
		"a block of blank lines":                           {f.both + begin + "\n\n\n" + end + "\n", bundle.BadCertificate},
		"a certificate followed by a byte":                 {f.both + block("CERTIFICATE", append(slices.Clone(der.Bytes), 0)), bundle.BadCertificate},
		"a certificate followed by another":                {f.both + block("CERTIFICATE", append(slices.Clone(der.Bytes), der.Bytes...)), bundle.BadCertificate},
		"a certificate that is cut short":                  {f.both + block("CERTIFICATE", der.Bytes[:len(der.Bytes)-9]), bundle.BadCertificate},
		"a block of random bytes":                          {f.both + block("CERTIFICATE", []byte("random bytes")), bundle.BadCertificate},
		"PEM within PEM":                                   {f.both + block("CERTIFICATE", []byte(f.first)), bundle.BadCertificate},
		"nothing":                                          {"", bundle.MissingBundle},
		"blanks, tabs and line ends":                       {" \t\r\n\v\f\n", bundle.MissingBundle},
		"a byte-order mark alone":                          {"\ufeff\n", bundle.MissingBundle},
		"invisible characters alone":                       {"\u200b\u00a0\u3000\n", bundle.MissingBundle},
		"a comment alone":                                  {"# no CA yet\n", bundle.NotPEM},
		"plain text":                                       {"see attached file\n", bundle.NotPEM},
		"the path of a file":                               {"/etc/kubernetes/pki/ca.crt", bundle.NotPEM},
		"DER":                                              {string(der.Bytes), bundle.NotPEM},
		"base64 of DER":                                    {base64.StdEncoding.EncodeToString(der.Bytes), bundle.NotPEM},
		"base64 of DER in lines":                           {strings.Join(lines[1:len(lines)-2], "\n"), bundle.NotPEM},
		"base64 of PEM":                                    {base64.StdEncoding.EncodeToString([]byte(f.both)), bundle.NotPEM},
		"base64 of base64 of PEM":                          {base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(f.both)))), bundle.NotPEM},
		"UTF-16, little-endian, with a byte-order mark":    {inUTF16(f.both, false, true), bundle.NotPEM},
		"UTF-16, little-endian, without a byte-order mark": {inUTF16(f.both, false, false), bundle.NotPEM},
		"UTF-16, big-endian, with a byte-order mark":       {inUTF16(f.both, true, true), bundle.NotPEM},
		"UTF-16, big-endian, without a byte-order mark":    {inUTF16(f.both, true, false), bundle.NotPEM},
		"UTF-16 with Windows line ends":                    {inUTF16(strings.ReplaceAll(f.both, "\n", "\r\n"), false, true), bundle.NotPEM},
		"a YAML document":                                  {"apiVersion: v1\nkind: ConfigMap\n", bundle.NotPEM},
		"JSON":                                             {"{}", bundle.NotPEM},
		"an HTML page":                                     {"<html><body>404</body></html>", bundle.NotPEM},
	} {
		t.Run(name, func(t *testing.T) {
			v := reviewNew(c.text)
			if !slices.Contains(codes(v.Reasons), c.want) {
				t.Errorf("reasons %v, want %s", v.Reasons, c.want)
			}
			for _, f := range v.Reasons {
				if strings.Contains(f.Message, bodyLine[:12]) || strings.ContainsAny(f.Message, "\r\n") {
					t.Errorf("the message echoes content or has several lines: %q", f.Message)
				}
			}
		})
	}
}

func TestBlocksOfAnotherTypeAreRefused(t *testing.T) {
	f := newFixture(t)
	der, _ := pem.Decode([]byte(f.first))
	for _, label := range []string{"TRUSTED CERTIFICATE", "X509 CERTIFICATE", "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST",
		"X509 CRL", "PKCS7", "PKCS #7 SIGNED DATA", "CMS", "PUBLIC KEY", "RSA PUBLIC KEY", "EC PARAMETERS", "DH PARAMETERS",
		"ATTRIBUTE CERTIFICATE", "CERTIFICATE PAIR", "SSH2 PUBLIC KEY", "FOO"} {
		t.Run(label, func(t *testing.T) {
			if got := codes(reviewNew(f.both + block(label, der.Bytes)).Reasons); !slices.Equal(got, []bundle.Code{bundle.UnexpectedBlock}) {
				t.Errorf("reasons %v, want %s alone", got, bundle.UnexpectedBlock)
			}
		})
	}
	for _, label := range []string{"PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY",
		"OPENSSH PRIVATE KEY", "ANY PRIVATE KEY", "PGP PRIVATE KEY BLOCK", "X25519 PRIVATE KEY"} {
		t.Run(label, func(t *testing.T) {
			v := reviewNew(f.both + block(label, der.Bytes))
			if got := codes(v.Reasons); !slices.Equal(got, []bundle.Code{bundle.PrivateKey}) {
				t.Fatalf("reasons %v, want %s alone", got, bundle.PrivateKey)
			}
			if !strings.Contains(v.Reasons[0].Message, "compromised") {
				t.Errorf("the message does not say that the key is compromised: %s", v.Reasons[0].Message)
			}
		})
	}
	legacy := "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nTUlJQg==\n-----END RSA PRIVATE KEY-----\n"
	if got := codes(reviewNew(f.both + legacy).Reasons); !slices.Equal(got, []bundle.Code{bundle.PrivateKey}) {
		t.Errorf("a legacy encrypted private key: reasons %v, want %s alone", got, bundle.PrivateKey)
	}
}

func TestTextThatParsersReadIsAllowed(t *testing.T) {
	f := newFixture(t)
	bodyLine := strings.Split(f.first, "\n")[2]
	opensslText := `Certificate:
    Data:
        Version: 3 (0x2)
        Serial Number:
            4d:2f:6b:11:aa:9e:00:52:1c
        Signature Algorithm: sha256WithRSAEncryption
        Issuer: C = US, O = Example, CN = kube-apiserver-to-kubelet-signer@1764590400
        Validity
            Not Before: Dec  1 12:00:00 2025 GMT
            Not After : Dec  1 12:00:00 2026 GMT
        Subject Public Key Info:
            Public Key Algorithm: rsaEncryption
                Public-Key: (2048 bit)
                Modulus:
                    00:c1:38:5f:12:77:31:d0:5b:0c:9d:af:e4:06:2e:
        X509v3 extensions:
            X509v3 Key Usage: critical
                Digital Signature, Key Encipherment, Certificate Sign
            X509v3 Basic Constraints: critical
                CA:TRUE
    Signature Value:
        6e:94:6c:aa:42:95:6c:17:0b:23:ef:0c:6f:83:
`
	for name, text := range map[string]string{
		"as it is":                             f.both,
		"Windows line ends":                    strings.ReplaceAll(f.both, "\n", "\r\n"),
		"mixed line ends":                      replaced(t, f.both, "\n", "\r\n"),
		"no final line end":                    strings.TrimSuffix(f.both, "\n"),
		"blank lines all over":                 "\n\n" + f.first + "\n \n\t\n" + f.second + "\n\n",
		"blanks behind the markers":            strings.ReplaceAll(f.both, "-----\n", "----- \t\n"),
		"base64 in one line":                   begin + "\n" + strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(f.first, begin+"\n"), end+"\n"), "\n", "") + "\n" + end + "\n" + f.second,
		"indented base64 between good markers": replaced(t, f.both, bodyLine, "  "+bodyLine),
		"blank lines within a block":           replaced(t, f.both, bodyLine, "\n"+bodyLine+"\n"),
		"comments":                             "# signer 1\n" + f.first + "; signer 2 -- until the end of 2027\n" + f.second + "# end of the list\n",
		"comments with dashes":                 "# ---- old signer ----\n" + f.first + "--- new signer ---\n" + f.second + "# back-end, week-end\n",
		"a byte-order mark in a comment":       "\ufeff# signers\n" + f.both,
		"comments in other languages":          "# Signaturstelle für Köln – läuft ab\n# 署名者\n" + f.both,
		"a comment about the end of a signer":  "# signer 1 — end of life next year\n# the front–end team's CA -- end\n" + f.both,
		"what openssl x509 -text prints":       opensslText + f.first + opensslText + f.second,
		"what openssl pkcs12 prints":           "Bag Attributes\n    localKeyID: 54 69 6D 65 20 31\n    friendlyName: signer\nsubject=CN = first\nissuer=CN = first\n" + f.both,
		"what openssl s_client prints":         "CONNECTED(00000003)\n---\nCertificate chain\n 0 s:CN = first\n   i:CN = first\n   a:PKEY: id-ecPublicKey, 256 (bit); sigalg: ecdsa-with-SHA256\n" + f.both + "---\nServer certificate\nDONE\n",
		"what openssl prints of fingerprints":  "sha256 Fingerprint=97:DA:35:0C:CD:15:D9:F5\nserial=4D2F6B11AA9E00521C4D2F6B11AA9E00521C4D2F\nModulus=" + strings.Repeat("C1385F", 80) + "\n" + f.both,
		"fingerprints in hexadecimal":          "# sha256 97da350ccd15d9f557cec6cc2a2bf326fa1eca2430cae56c9c6b971b06ca2ecc\n" + f.both,
		"what keytool prints":                  "Alias name: signer\nEntry type: trustedCertEntry\n\n" + f.both + "\n*******************************************\n",
		"what mk-ca-bundle prints":             "GlobalSign Root CA\n==================\n" + f.both,
		"a long path and a long name":          "# /etc/kubernetes/static-pod-resources/configmaps/client-ca/ca-bundle.crt\n# KubeAPIServerToKubeletSigner\n" + f.both,
		"a carriage return in a comment":       "# signer\r of ours\n" + f.both,
	} {
		t.Run(name, func(t *testing.T) {
			v := reviewNew(text)
			if !v.Allowed || v.Certificates() != 2 {
				t.Fatalf("allowed %v, %d certificates, reasons %v", v.Allowed, v.Certificates(), v.Reasons)
			}
			loaded, err := cert.ParseCertsPEM([]byte(text))
			if err != nil || len(loaded) != 2 {
				t.Errorf("the kubelet's parser loads %d certificates: %v", len(loaded), err)
			}
		})
	}
}

func TestEveryFaultOfABundleIsReportedAtOnce(t *testing.T) {
	f := newFixture(t)
	leaf := bundletest.NewCA(t, bundletest.Spec{Name: "leaf", Extensions: []pkix.Extension{bundletest.BasicConstraints(t, false, -1)}})
	text := f.first + string(leaf.PEM) + block("X509 CRL", []byte("x")) + begin + "\nMII\n" + begin + "\n" + end + "\n" + "  " + f.second
	want := []bundle.Code{bundle.BadCertificate, bundle.BrokenPEM, bundle.NotCA, bundle.UnexpectedBlock}
	v := reviewNew(text)
	if got := codes(v.Reasons); !slices.Equal(got, want) {
		t.Fatalf("reasons %v, want %v", got, want)
	}
	positions := map[bundle.Code]int{}
	for _, r := range v.Reasons {
		positions[r.Code] = r.Position
	}
	if positions[bundle.NotCA] != 2 || positions[bundle.UnexpectedBlock] != 3 || positions[bundle.BadCertificate] != 5 {
		t.Errorf("the positions do not count every block: %v", v.Reasons)
	}
}

func TestAMessageNamesTheCertificate(t *testing.T) {
	ca := bundletest.NewCA(t, bundletest.Spec{Name: strings.Repeat("x", 5000), From: bundletest.At().AddDate(-2, 0, 0), Until: bundletest.At().AddDate(-1, 0, 0)})
	v := bundle.Review(nil, slices.Concat(bundletest.Named(t, "good").PEM, ca.PEM), bundletest.At(), nil)
	if len(v.Warnings) != 1 {
		t.Fatalf("warnings %v, want one", v.Warnings)
	}
	got, fingerprint := v.Warnings[0], bundle.Hash(ca.Certificate.Raw)
	if got.Position != 2 || got.Fingerprint.String() != fingerprint || !strings.HasPrefix(got.Subject, "CN=xxx") {
		t.Errorf("finding %+v does not name certificate 2, its subject and %s", got, fingerprint)
	}
	if !strings.Contains(got.Message, fingerprint) || len(got.Message) > 400 {
		t.Errorf("message %q lacks the fingerprint or is too long to read", got.Message)
	}
}
