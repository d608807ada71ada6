package bundle_test

import (
	"bytes"
	"crypto/dsa" //nolint:staticcheck // deprecated as it should be: the test shows that such keys are refused
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
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
	var parameters dsa.Parameters
	if err := dsa.GenerateParameters(&parameters, rand.Reader, dsa.L1024N160); err != nil {
		t.Fatal(err)
	}
	dsaKey := spki(pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10040, 4, 1},
		Parameters: asn1.RawValue{FullBytes: bundletest.Marshal(t, struct{ P, Q, G *big.Int }{parameters.P, parameters.Q, parameters.G})}},
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

func TestTooManyNamesAreRefused(t *testing.T) {
	of := func(length int) []byte {
		key := bundletest.NewKey(t)
		ca := bundletest.NewCA(t, bundletest.Spec{Name: strings.Repeat("x", 1000), Key: key})
		overhead := len(ca.Certificate.RawSubject) - 1000
		return bundletest.NewCA(t, bundletest.Spec{Name: strings.Repeat("x", length-overhead), Key: key}).PEM
	}
	const most = 65533
	text := bytes.Repeat(of(998), 65) // 65 times 1,000 bytes, the two of the length included
	for _, c := range []struct {
		rest int
		want bool
	}{{533 - 2, true}, {534 - 2, false}} {
		t.Run(fmt.Sprintf("%d bytes", 65000+c.rest+2), func(t *testing.T) {
			v := bundle.Review(nil, slices.Concat(text, of(c.rest)), bundletest.At(), nil)
			if v.Allowed != c.want || !v.Allowed && !slices.Equal(codes(v.Reasons), []bundle.Code{bundle.TooManyCAs}) {
				t.Errorf("allowed %v with %v, want %v at the limit of %d", v.Allowed, v.Reasons, c.want, most)
			}
		})
	}
}

func TestMoreCAsOfOneSubjectThanAreTriedAreRefused(t *testing.T) {
	var text []byte
	for i := range 101 {
		if v := bundle.Review(nil, text, bundletest.At(), nil); i > 0 && !v.Allowed {
			t.Fatalf("%d are refused: %v", i, v.Reasons)
		}
		text = append(text, bundletest.Named(t, "same").PEM...)
	}
	if v := bundle.Review(nil, text, bundletest.At(), nil); !slices.Equal(codes(v.Reasons), []bundle.Code{bundle.TooManyCAs}) {
		t.Errorf("101 get %v, want %s", v.Reasons, bundle.TooManyCAs)
	}
}
