package bundle_test

import (
	"crypto/x509/pkix"
	"slices"
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

func TestChanges(t *testing.T) {
	at := bundletest.At()
	key := bundletest.NewKey(t)
	a := bundletest.NewCA(t, bundletest.Spec{Name: "a", Key: key})
	b, other := bundletest.Named(t, "b"), bundletest.Named(t, "a")
	longer := bundletest.NewCA(t, bundletest.Spec{Name: "a", Key: key, Until: at.AddDate(2, 0, 0)})
	future := bundletest.NewCA(t, bundletest.Spec{Name: "a", Key: key, From: at.Add(time.Hour), Until: at.AddDate(2, 0, 0)})
	leaf := bundletest.NewCA(t, bundletest.Spec{Name: "leaf", Extensions: []pkix.Extension{bundletest.BasicConstraints(t, false, -1)}})
	ending := func(in time.Duration) bundletest.CA {
		return bundletest.NewCA(t, bundletest.Spec{Name: "ending", Until: at.Add(in)})
	}
	text := func(cas ...bundletest.CA) string { return string(bundletest.Bundle(cas...)) }
	broken := "  " + text(a)
	for name, c := range map[string]struct {
		old, new string
		allow    []bundletest.CA
		reasons  []bundle.Code
		warnings []bundle.Code
	}{
		"an addition":            {old: text(a), new: text(a, b)},
		"another order":          {old: text(a, b), new: text(b, a)},
		"the same with comments": {old: text(a, b), new: "# a and b\n" + text(a, b)},
		"a valid CA is dropped":  {old: text(a, b), new: text(b), reasons: []bundle.Code{bundle.DropsValidCA}},
		"a CA that ends in five minutes and one second is dropped": {old: text(ending(5*time.Minute+time.Second), b), new: text(b), reasons: []bundle.Code{bundle.DropsValidCA}},
		"a CA that ends in five minutes is dropped":                {old: text(ending(5*time.Minute), b), new: text(b)},
		"a CA that ended is dropped":                               {old: text(ending(-time.Second), b), new: text(b)},
		"a CA that is not yet valid is dropped":                    {old: text(future, b), new: text(b)},
		"a leaf is dropped":                                        {old: text(leaf, b), new: text(b)},
		"a leaf that was there stays":                              {old: text(leaf, a), new: text(leaf, a, b), warnings: []bundle.Code{bundle.NotCA}},
		"a leaf comes":                                             {old: text(a), new: text(a, leaf), reasons: []bundle.Code{bundle.NotCA}},
		"a longer re-issue takes over":                             {old: text(a, b), new: text(longer, b), warnings: []bundle.Code{bundle.Reissued}},
		"a shorter re-issue does not take over":                    {old: text(longer, b), new: text(a, b), reasons: []bundle.Code{bundle.DropsValidCA}},
		"a re-issue that is not yet valid does not":                {old: text(a, b), new: text(future, b), reasons: []bundle.Code{bundle.DropsValidCA}, warnings: []bundle.Code{bundle.NotYetValid}},
		"another key under the same subject":                       {old: text(a, b), new: text(other, b), reasons: []bundle.Code{bundle.DropsValidCA}},
		"an allowed drop":                                          {old: text(a, b), new: text(b), allow: []bundletest.CA{a}, warnings: []bundle.Code{bundle.AllowedDrop}},
		"an allowed drop of all":                                   {old: text(a), new: text(future), allow: []bundletest.CA{a}, reasons: []bundle.Code{bundle.NoUsableCA}, warnings: []bundle.Code{bundle.AllowedDrop, bundle.NotYetValid}},
		"an allowance for another":                                 {old: text(a, b), new: text(b), allow: []bundletest.CA{b}, reasons: []bundle.Code{bundle.DropsValidCA}},
		"a broken bundle is repaired":                              {old: broken, new: text(a)},
		"a broken bundle is replaced":                              {old: broken, new: text(b)},
		"a repair drops what could still be read":                  {old: broken + text(b), new: text(a), reasons: []bundle.Code{bundle.DropsValidCA}},
		"a broken bundle is edited":                                {old: broken, new: broken + "\n", reasons: []bundle.Code{bundle.BrokenPEM}},
		"a broken bundle stays":                                    {old: broken, new: broken},
		"an empty bundle stays":                                    {old: "", new: ""},
		"an empty bundle is filled":                                {old: "", new: text(a)},
		"a bundle is emptied":                                      {old: text(a), new: "", reasons: []bundle.Code{bundle.MissingBundle}},
		"a private key comes and a CA goes":                        {old: text(a, b), new: text(b) + block("PRIVATE KEY", nil), reasons: []bundle.Code{bundle.DropsValidCA, bundle.PrivateKey}},
		"a CA that ends within 30 days comes":                      {old: text(a), new: text(a, ending(29*24*time.Hour)), warnings: []bundle.Code{bundle.ExpiresSoon}},
	} {
		t.Run(name, func(t *testing.T) {
			allow := bundle.Allowances{}
			for _, ca := range c.allow {
				fingerprint, err := bundle.ParseFingerprint(bundle.Hash(ca.Certificate.Raw))
				if err != nil {
					t.Fatal(err)
				}
				allow[fingerprint] = struct{}{}
			}
			v := bundle.Review([]byte(c.old), []byte(c.new), at, allow)
			if got := codes(v.Reasons); !slices.Equal(got, c.reasons) || v.Allowed != (len(c.reasons) == 0) {
				t.Errorf("allowed %v, reasons %v, want %v", v.Allowed, v.Reasons, c.reasons)
			}
			if got := codes(v.Warnings); !slices.Equal(got, c.warnings) {
				t.Errorf("warnings %v, want %v", v.Warnings, c.warnings)
			}
		})
	}
}
