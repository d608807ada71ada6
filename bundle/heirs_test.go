package bundle_test

import (
	"bytes"
	"crypto/x509/pkix"
	"encoding/asn1"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

func TestAnHeirTakesOverOnlyWithAllOfTheTrust(t *testing.T) {
	at, key := bundletest.At(), bundletest.NewKey(t)
	end := at.Add(100 * bundletest.Day)
	ca := func(change func(*bundletest.Spec)) bundletest.CA {
		spec := bundletest.Spec{Name: "signer", Key: key, Until: end}
		change(&spec)
		return bundletest.NewCA(t, spec)
	}
	with := func(extensions ...pkix.Extension) bundletest.CA {
		return ca(func(s *bundletest.Spec) { s.Extensions = extensions })
	}
	depth := func(most int) bundletest.CA { return with(bundletest.BasicConstraints(t, true, most)) }
	from := func(d time.Duration) bundletest.CA {
		return ca(func(s *bundletest.Spec) { s.From = at.Add(d) })
	}
	until := func(d time.Duration) bundletest.CA {
		return ca(func(s *bundletest.Spec) { s.Until = end.Add(d) })
	}
	eku := func(usages ...asn1.ObjectIdentifier) bundletest.CA {
		return with(bundletest.BasicConstraints(t, true, -1), bundletest.ExtendedKeyUsage(t, usages...))
	}
	plain := ca(func(*bundletest.Spec) {})
	version1 := ca(func(s *bundletest.Spec) { s.Version = 1 })
	for name, c := range map[string]struct {
		gone, heir bundletest.CA
		want       bool
	}{
		"the like":            {plain, ca(func(*bundletest.Spec) {}), true},
		"another subject":     {plain, ca(func(s *bundletest.Spec) { s.Name = "Signer" }), false},
		"another key":         {plain, ca(func(s *bundletest.Spec) { s.Key = bundletest.NewKey(t) }), false},
		"of version 1":        {plain, version1, true},
		"for one":             {version1, plain, true},
		"with a usage more":   {with(bundletest.BasicConstraints(t, true, -1)), plain, true},
		"for clients too":     {plain, eku(bundletest.ServerAuth, bundletest.ClientAuth), true},
		"for any use":         {eku(bundletest.ClientAuth), eku(bundletest.AnyUsage), true},
		"for servers alone":   {plain, eku(bundletest.ServerAuth), false},
		"for what none knows": {plain, eku(bundletest.UnknownUsage), false},
		"that is no CA":       {plain, with(bundletest.BasicConstraints(t, false, -1)), false},
		"that ends as late":   {plain, until(0), true},
		"a second later":      {plain, until(time.Second), true},
		"a second sooner":     {plain, until(-time.Second), false},
		"that begins now":     {plain, from(0), true},
		"in a second":         {plain, from(time.Second), false}, // until then kubelets would refuse what gone signed
		"within the skew":     {plain, from(bundle.ClockSkew), false},
		"beyond it":           {plain, from(bundle.ClockSkew + time.Second), false},
		"with no depth":       {depth(-1), depth(0), false},
		"with some depth":     {depth(-1), depth(5), false},
		"with less depth":     {depth(1), depth(0), false},
		"with the same depth": {depth(1), depth(1), true},
		"none as before":      {depth(0), depth(0), true},
		"with more depth":     {depth(0), depth(1), true},
		"with any depth":      {depth(5), depth(-1), true},
		"version 1 for depth": {depth(0), version1, true},
		"depth for version 1": {version1, depth(0), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := takesOver(t, c.gone, c.heir); got != c.want {
				t.Errorf("takes over: %v, want %v", got, c.want)
			}
		})
	}
}

func TestOneOfSeveralMayTakeOver(t *testing.T) {
	key := bundletest.NewKey(t)
	ca := func(name string, until time.Time) bundletest.CA {
		return bundletest.NewCA(t, bundletest.Spec{Name: name, Key: key, Until: until})
	}
	end := bundletest.At().Add(100 * bundletest.Day)
	gone, sooner, later := ca("signer", end), ca("signer", end.Add(-time.Second)), ca("signer", end.Add(time.Second))
	coming := bundletest.NewCA(t, bundletest.Spec{Name: "signer", Key: key, From: bundletest.At().Add(time.Minute), Until: end})
	v := bundle.Review(gone.PEM, bundletest.Bundle(coming, sooner, ca("other", end), later), bundletest.At(), nil)
	if !v.Allowed || !slices.Equal(codes(v.Warnings), []bundle.Code{bundle.NotYetValid, bundle.Reissued}) {
		t.Fatalf("allowed %v, reasons %v, warnings %v", v.Allowed, v.Reasons, v.Warnings)
	}
	if want := "number 4, sha256 " + bundle.Hash(later.Certificate.Raw); !strings.Contains(v.Warnings[1].Message, want) {
		t.Errorf("the message does not name the heir, %s: %s", want, v.Warnings[1].Message)
	}
}

func TestEveryDropIsReportedOnce(t *testing.T) {
	a, b, kept := bundletest.Named(t, "a"), bundletest.Named(t, "b"), bundletest.Named(t, "kept")
	old := bundletest.Bundle(a, kept, b, a, b)
	v := bundle.Review(old, kept.PEM, bundletest.At(), nil)
	if len(v.Reasons) != 2 {
		t.Fatalf("reasons %v, want two", v.Reasons)
	}
	for i, want := range []struct {
		ca       bundletest.CA
		position int
	}{{a, 1}, {b, 3}} {
		got := v.Reasons[i]
		if got.Code != bundle.DropsValidCA || got.Position != want.position || got.Fingerprint.String() != bundle.Hash(want.ca.Certificate.Raw) {
			t.Errorf("reason %d is %+v, want certificate %d of the old bundle", i, got, want.position)
		}
	}
	if v := bundle.Review(old, bytes.Repeat(kept.PEM, 2), bundletest.At(), nil); len(v.Reasons) != 2 || !slices.Equal(codes(v.Warnings), []bundle.Code{bundle.Duplicate}) {
		t.Errorf("with a duplicate: reasons %v, warnings %v", v.Reasons, v.Warnings)
	}
}
