package bundle_test

import (
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

func TestASignerThatIsJustBornByItsMakersClockMayBeTheOnlyOne(t *testing.T) {
	expired := bundletest.NewCA(t, bundletest.Spec{Name: "expired", From: bundletest.At().Add(-2 * bundletest.Day), Until: bundletest.At().Add(-bundletest.Day)})
	for _, c := range []struct {
		name    string
		ahead   time.Duration
		allowed bool
	}{
		{"born a second ahead of the judge's clock", time.Second, true},
		{"born as far ahead as clocks may be apart", bundle.ClockSkew, true},
		{"to be born later than that", bundle.ClockSkew + time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			born := bundletest.NewCA(t, bundletest.Spec{Name: "born", From: bundletest.At().Add(c.ahead)})
			for what, old := range map[string][]byte{"creation": nil, "after all had expired": expired.PEM} {
				if v := bundle.Review(old, born.PEM, bundletest.At(), nil); v.Allowed != c.allowed {
					t.Errorf("%s: allowed %v: %v", what, v.Allowed, v.Reasons)
				}
			}
		})
	}
}
