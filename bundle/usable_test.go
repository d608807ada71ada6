package bundle_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

func TestUnusableSaysWhy(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca, leaf := bundletest.BasicConstraints(t, true, -1), bundletest.BasicConstraints(t, false, -1)
	usage, eku := bundletest.KeyUsage, bundletest.ExtendedKeyUsage
	with := func(extensions ...pkix.Extension) bundletest.Spec {
		return bundletest.Spec{Extensions: append([]pkix.Extension{}, extensions...)}
	}
	for name, c := range map[string]struct {
		spec bundletest.Spec
		want []bundle.Code
	}{
		"an ordinary CA":                      {bundletest.Spec{}, nil},
		"Ed25519":                             {bundletest.Spec{Key: ed}, nil},
		"version 1":                           {bundletest.Spec{Version: 1}, nil},
		"version 2":                           {bundletest.Spec{Version: 2}, nil},
		"basic constraints alone":             {with(ca), nil},
		"no extensions":                       {with(), []bundle.Code{bundle.NotCA}},
		"no basic constraints":                {with(usage(t, x509.KeyUsageCertSign)), []bundle.Code{bundle.NotCA}},
		"not a CA":                            {with(leaf), []bundle.Code{bundle.NotCA}},
		"not a CA, and more":                  {with(leaf, usage(t, x509.KeyUsageCRLSign), eku(t, bundletest.ServerAuth)), []bundle.Code{bundle.NotCA}},
		"certificate signing alone":           {with(ca, usage(t, x509.KeyUsageCertSign)), nil},
		"certificate signing among others":    {with(ca, usage(t, x509.KeyUsageCertSign|x509.KeyUsageCRLSign|x509.KeyUsageDecipherOnly)), nil},
		"CRL signing":                         {with(ca, usage(t, x509.KeyUsageCRLSign)), []bundle.Code{bundle.CannotSign}},
		"signatures":                          {with(ca, usage(t, x509.KeyUsageDigitalSignature)), []bundle.Code{bundle.CannotSign}},
		"an empty key usage":                  {with(ca, usage(t, 0)), nil}, // to Go, the same as none
		"an unknown critical extension":       {with(ca, bundletest.UnknownCritical(t)), []bundle.Code{bundle.CannotSign}},
		"client authentication":               {with(ca, eku(t, bundletest.ClientAuth)), nil},
		"client authentication among others":  {with(ca, eku(t, bundletest.ServerAuth, bundletest.UnknownUsage, bundletest.ClientAuth)), nil},
		"any use":                             {with(ca, eku(t, bundletest.AnyUsage)), nil},
		"server authentication":               {with(ca, eku(t, bundletest.ServerAuth)), []bundle.Code{bundle.NotForClientAuth}},
		"a use that nobody knows":             {with(ca, eku(t, bundletest.UnknownUsage)), []bundle.Code{bundle.NotForClientAuth}},
		"servers, and what nobody knows":      {with(ca, eku(t, bundletest.ServerAuth, bundletest.UnknownUsage)), []bundle.Code{bundle.NotForClientAuth}},
		"all of it":                           {with(ca, usage(t, x509.KeyUsageCRLSign), eku(t, bundletest.ServerAuth), bundletest.UnknownCritical(t)), []bundle.Code{bundle.CannotSign, bundle.CannotSign, bundle.NotForClientAuth}},
		"a CA of version 1 without any usage": {bundletest.Spec{Version: 1, Extensions: []pkix.Extension{leaf}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Name = "signer"
			text := bundletest.NewCA(t, c.spec).PEM
			read, findings := bundle.Parse(text)
			if len(findings) > 0 {
				t.Fatal(findings)
			}
			if got := read.Certificates[0].Unusable(bundletest.At()); !slices.Equal(got, c.want) {
				t.Errorf("unusable for %v, want %v", got, c.want)
			}
			// Beside a good CA it is refused when it comes, and only then.
			good := bundletest.Named(t, "good").PEM
			v := bundle.Review(good, slices.Concat(good, text), bundletest.At(), nil)
			if !slices.Equal(codes(v.Reasons), slices.Compact(slices.Clone(c.want))) || len(v.Reasons) != len(c.want) {
				t.Errorf("when it comes, reasons are %v, want %v", v.Reasons, c.want)
			}
			v = bundle.Review(slices.Concat(good, text), slices.Concat(text, good), bundletest.At(), nil)
			if !v.Allowed || len(v.Warnings) != len(c.want) || !slices.Equal(codes(v.Warnings), slices.Compact(slices.Clone(c.want))) {
				t.Errorf("when it was there, reasons are %v and warnings %v, want %v", v.Reasons, v.Warnings, c.want)
			}
			// Alone it is no CA to rely on, though it was there.
			v = bundle.Review(slices.Concat(text, []byte("#\n")), text, bundletest.At(), nil)
			if v.Allowed != (len(c.want) == 0) || !v.Allowed && !slices.Equal(codes(v.Reasons), []bundle.Code{bundle.NoUsableCA}) {
				t.Errorf("alone, reasons are %v", v.Reasons)
			}
		})
	}
}

// TestTimesCountToTheSecond asks about one certificate at its boundaries: both ends belong to its time (RFC 5280 section
// 4.1.2.5).
func TestTimesCountToTheSecond(t *testing.T) {
	from, until := bundletest.At().Add(-200*bundletest.Day), bundletest.At().Add(200*bundletest.Day)
	ca := bundletest.NewCA(t, bundletest.Spec{Name: "signer", From: from, Until: until})
	good := bundletest.NewCA(t, bundletest.Spec{Name: "good", From: from.AddDate(-1, 0, 0), Until: until.AddDate(1, 0, 0)})
	const month = 30 * bundletest.Day
	for _, c := range []struct {
		at       time.Time
		unusable []bundle.Code
		warned   []bundle.Code
		alone    bool // it may be all there is
		needed   bool // it may not be dropped
	}{
		{from.Add(-month), []bundle.Code{bundle.NotYetValid}, []bundle.Code{bundle.NotYetValid}, false, false},
		{from.Add(-bundle.ClockSkew - time.Second), []bundle.Code{bundle.NotYetValid}, []bundle.Code{bundle.NotYetValid}, false, false},
		{from.Add(-bundle.ClockSkew), []bundle.Code{bundle.NotYetValid}, []bundle.Code{bundle.NotYetValid}, true, false},
		{from.Add(-time.Second), []bundle.Code{bundle.NotYetValid}, []bundle.Code{bundle.NotYetValid}, true, false},
		{from, nil, nil, true, true},
		{from.Add(time.Second), nil, nil, true, true},
		{until.Add(-month - time.Second), nil, nil, true, true},
		{until.Add(-month), nil, []bundle.Code{bundle.ExpiresSoon}, true, true},
		{until.Add(-bundle.ClockSkew - time.Second), nil, []bundle.Code{bundle.ExpiresSoon}, true, true},
		{until.Add(-bundle.ClockSkew), nil, []bundle.Code{bundle.ExpiresSoon}, true, false},
		{until.Add(-time.Second), nil, []bundle.Code{bundle.ExpiresSoon}, true, false},
		{until, nil, []bundle.Code{bundle.ExpiresSoon}, true, false},
		{until.Add(time.Second), []bundle.Code{bundle.Expired}, []bundle.Code{bundle.Expired}, false, false},
	} {
		t.Run(c.at.Format(time.RFC3339), func(t *testing.T) {
			if got := parsed(t, ca).Certificates[0].Unusable(c.at); !slices.Equal(got, c.unusable) {
				t.Errorf("unusable for %v, want %v", got, c.unusable)
			}
			v := bundle.Review(nil, ca.PEM, c.at, nil)
			if v.Allowed != c.alone || !v.Allowed && !slices.Equal(codes(v.Reasons), []bundle.Code{bundle.NoUsableCA}) {
				t.Errorf("alone: allowed %v with %v", v.Allowed, v.Reasons)
			}
			if !slices.Equal(codes(v.Warnings), c.warned) {
				t.Errorf("warnings %v, want %v", v.Warnings, c.warned)
			}
			v = bundle.Review(bundletest.Bundle(ca, good), good.PEM, c.at, nil)
			if v.Allowed == c.needed || !v.Allowed && !slices.Equal(codes(v.Reasons), []bundle.Code{bundle.DropsValidCA}) {
				t.Errorf("dropped: allowed %v with %v", v.Allowed, v.Reasons)
			}
		})
	}
}

func TestACertificateThatIsBornExpiredIsNeverUsable(t *testing.T) {
	at := bundletest.At()
	ca := bundletest.NewCA(t, bundletest.Spec{Name: "signer", From: at.Add(2 * time.Minute), Until: at.Add(time.Minute)})
	if v := bundle.Review(nil, ca.PEM, at, nil); !slices.Equal(codes(v.Reasons), []bundle.Code{bundle.NoUsableCA}) {
		t.Errorf("reasons %v, want %s", v.Reasons, bundle.NoUsableCA)
	}
}

func TestTimesInMessagesAreThoseOfTheCertificate(t *testing.T) {
	at := bundletest.At()
	ended := bundletest.NewCA(t, bundletest.Spec{Name: "a", From: at.Add(-2 * time.Hour), Until: at.Add(-time.Hour)})
	ending := bundletest.NewCA(t, bundletest.Spec{Name: "b", Until: at.Add(time.Hour)})
	coming := bundletest.NewCA(t, bundletest.Spec{Name: "c", From: at.Add(2 * time.Hour)})
	v := bundle.Review(nil, bundletest.Bundle(ended, ending, coming), at.In(time.FixedZone("elsewhere", 3600)), nil)
	for i, want := range []string{"it ended at 2026-12-01T11:00:00Z", "it ends at 2026-12-01T13:00:00Z", "it is valid from 2026-12-01T14:00:00Z"} {
		if len(v.Warnings) != 3 || !strings.Contains(v.Warnings[i].Message, want) {
			t.Errorf("warnings %v, want %q in number %d", v.Warnings, want, i)
		}
	}
	v = bundle.Review(ending.PEM, bundletest.Named(t, "good").PEM, at, nil)
	if len(v.Reasons) != 1 || !strings.Contains(v.Reasons[0].Message, "valid until 2026-12-01T13:00:00Z") {
		t.Errorf("reasons %v do not say until when it is valid", v.Reasons)
	}
}

func TestABrokenHashInTheSignatureIsAWarning(t *testing.T) {
	rsa := func(n int) asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, n} }
	ecdsa := func(n int) asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, n} }
	for name, c := range map[string]struct {
		algorithm asn1.ObjectIdentifier
		weak      bool
	}{
		"MD5 with RSA":            {rsa(4), true},
		"SHA-1 with RSA":          {rsa(5), true},
		"SHA-1 with RSA, of ISO":  {asn1.ObjectIdentifier{1, 3, 14, 3, 2, 29}, true},
		"SHA-1 with DSA":          {asn1.ObjectIdentifier{1, 2, 840, 10040, 4, 3}, true},
		"SHA-1 with ECDSA":        {asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 1}, true},
		"SHA-256 with RSA":        {rsa(11), false},
		"SHA-512 with RSA":        {rsa(13), false},
		"SHA-256 with DSA":        {asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 2}, false},
		"SHA-256 with ECDSA":      {ecdsa(2), false},
		"SHA-384 with ECDSA":      {ecdsa(3), false},
		"Ed25519":                 {asn1.ObjectIdentifier{1, 3, 101, 112}, false},
		"an algorithm of no name": {asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 3}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ca := bundletest.NewCA(t, bundletest.Spec{Name: "signer", Signature: c.algorithm})
			v := bundle.Review(nil, ca.PEM, bundletest.At(), nil)
			if !v.Allowed || (len(v.Warnings) > 0) != c.weak || c.weak && v.Warnings[0].Code != bundle.WeakSignature {
				t.Errorf("allowed %v, reasons %v, warnings %v", v.Allowed, v.Reasons, v.Warnings)
			}
		})
	}
}
