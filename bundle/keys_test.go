package bundle_test

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"math/big"
	"slices"
	"strings"
	"testing"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

func TestKeysThatGoRefusesAreWeak(t *testing.T) {
	spki := func(algorithm pkix.AlgorithmIdentifier, key []byte) []byte {
		return bundletest.Marshal(t, struct {
			Algorithm pkix.AlgorithmIdentifier
			Key       asn1.BitString
		}{algorithm, asn1.BitString{Bytes: key, BitLength: 8 * len(key)}})
	}
	rsaKey := func(bits int, even bool, exponent int) []byte {
		n := new(big.Int).Lsh(big.NewInt(1), uint(bits)-1)
		if !even {
			n.Add(n, big.NewInt(1))
		}
		return spki(pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, Parameters: asn1.NullRawValue},
			bundletest.Marshal(t, struct {
				N *big.Int
				E int
			}{n, exponent}))
	}
	p, q, g := new(big.Int).Lsh(big.NewInt(1), 1023), new(big.Int).Lsh(big.NewInt(1), 159), big.NewInt(2)
	dsaKey := spki(pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10040, 4, 1},
		Parameters: asn1.RawValue{FullBytes: bundletest.Marshal(t, struct{ P, Q, G *big.Int }{p, q, g})}},
		bundletest.Marshal(t, big.NewInt(4711)))
	for name, c := range map[string]struct {
		key  []byte
		want bundle.Code
	}{
		"RSA of 512 bits":                {rsaKey(512, false, 65537), bundle.WeakKey},
		"RSA of 1023 bits":               {rsaKey(1023, false, 65537), bundle.WeakKey},
		"RSA of 1024 bits":               {rsaKey(1024, false, 65537), ""},
		"RSA with an even modulus":       {rsaKey(2048, true, 65537), bundle.WeakKey},
		"RSA with an even exponent":      {rsaKey(2048, false, 65536), bundle.WeakKey},
		"RSA with the exponent 1":        {rsaKey(2048, false, 1), bundle.WeakKey},
		"RSA with the exponent 3":        {rsaKey(2048, false, 3), ""},
		"RSA with the largest exponent":  {rsaKey(2048, false, 1<<31-1), ""},
		"RSA with an exponent too large": {rsaKey(2048, false, 1<<31+1), bundle.WeakKey},
		"DSA":                            {dsaKey, bundle.WeakKey},
		"X25519":                         {spki(pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 3, 101, 110}}, make([]byte, 32)), bundle.WeakKey},
		"Ed448":                          {spki(pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 3, 101, 113}}, make([]byte, 57)), bundle.WeakKey},
		"an elliptic curve unknown to Go": {spki(pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1},
			Parameters: asn1.RawValue{FullBytes: bundletest.Marshal(t, asn1.ObjectIdentifier{1, 3, 132, 0, 10})}}, make([]byte, 65)), bundle.BadCertificate},
	} {
		t.Run(name, func(t *testing.T) {
			der := bundletest.Spec{Name: "signer", PublicKey: c.key}.DER(t)
			v := bundle.Review(nil, slices.Concat(bundletest.Named(t, "good").PEM, bundletest.Block(der)), bundletest.At(), nil)
			if c.want == "" && !v.Allowed || c.want != "" && !slices.Equal(codes(v.Reasons), []bundle.Code{c.want}) {
				t.Errorf("reasons %v, want %q", v.Reasons, c.want)
			}
		})
	}
}

// privateKeys are the DER of one in each of the forms that tools write.
func privateKeys(t testing.TB) map[string][]byte {
	t.Helper()
	elliptic := bundletest.NewKey(t).(*ecdsa.PrivateKey)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(elliptic)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(elliptic)
	if err != nil {
		t.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"PKCS #8": pkcs8, "SEC 1": sec1, "PKCS #1": x509.MarshalPKCS1PrivateKey(key)}
}

func TestAPrivateKeyIsSeenUnderAnyLabelAndUnderNone(t *testing.T) {
	good := string(bundletest.Named(t, "good").PEM)
	for name, der := range privateKeys(t) {
		for what, c := range map[string]struct {
			text string
			want bundle.Code
		}{
			"in a block for a certificate": {good + block("CERTIFICATE", der), bundle.BadCertificate},
			"in DER":                       {string(der), bundle.NotPEM},
			"in base64":                    {base64.StdEncoding.EncodeToString(der), bundle.NotPEM},
			"as PEM in base64":             {base64.StdEncoding.EncodeToString([]byte(block("ENCRYPTED PRIVATE KEY", der))), bundle.NotPEM},
			"as PEM in UTF-16":             {inUTF16(block("EC PRIVATE KEY", der), true, true), bundle.NotPEM},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				_, findings := bundle.Parse([]byte(c.text))
				if len(findings) != 2 || findings[0].Code != c.want || findings[1].Code != bundle.PrivateKey {
					t.Fatalf("findings %v, want %s and %s", findings, c.want, bundle.PrivateKey)
				}
				if c.want == bundle.BadCertificate && (findings[0].Position != 2 || findings[1].Position != 2) {
					t.Errorf("findings %v, want them to be about block 2", findings)
				}
			})
		}
	}
	public, err := x509.MarshalPKIXPublicKey(bundletest.NewKey(t).Public())
	if err != nil {
		t.Fatal(err)
	}
	oneFault(t, good+block("CERTIFICATE", public), bundle.BadCertificate, "block 2: ")
	oneFault(t, string(public), bundle.NotPEM, "")
}

func TestAMessageSaysWhatATextWithoutMarkersIs(t *testing.T) {
	f := newFixture(t)
	body := strings.Split(f.first, "\n")[1]
	for text, want := range map[string]string{
		"0\x82\x01\x00":               "it is DER, not PEM",
		"0\x80":                       "it is DER, not PEM",
		"0\x7f":                       "it has no PEM marker",
		"1\x82\x01\x00":               "it has no PEM marker",
		"0":                           "it has no PEM marker",
		"see the file ca.crt":         "it has no PEM marker",
		inUTF16(f.first, false, true): "it is UTF-16",
		inUTF16("a CA", false, true):  "it has no PEM marker",
		body:                          "it is base64 of something",
		body + "\r\n" + body + "\n":   "it is base64 of something",
		"  " + body + " ":             "it is base64 of something",
		body + "!":                    "it has no PEM marker",
		base64.StdEncoding.EncodeToString([]byte("a")): "it is base64 of something",
	} {
		t.Run(want, func(t *testing.T) { oneFault(t, text, bundle.NotPEM, want) })
	}
	oneFault(t, " \n\u200b", bundle.MissingBundle, "the key is missing, empty or blank")
}
