package bundle_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

// sizes are the bundles that are compared: the ordinary one, the monthly refresh's, and a very large one.
var sizes = []int{2, 12, 600}

// rotation is an ordinary change: a bundle of n certificates, the last of which is new.
func rotation(t testing.TB, n int) (old, text []byte) {
	t.Helper()
	for i := range n {
		old = text
		text = append(bytes.Clone(text), bundletest.Named(t, fmt.Sprintf("openshift-kube-apiserver-operator_kube-apiserver-to-kubelet-signer@%d", i)).PEM...)
	}
	return old, text
}

// BenchmarkReview compares, in one run and on the same bytes, a review of a rotation (old and new bundle) and a review of
// a new bundle with the kubelet's parser reading the new bundle once.
func BenchmarkReview(b *testing.B) {
	for _, n := range sizes {
		old, text := rotation(b, n)
		for name, work := range costs(b, old, text) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				for b.Loop() {
					work()
				}
			})
		}
	}
}

// costs are what is compared.
func costs(t testing.TB, old, text []byte) map[string]func() {
	t.Helper()
	allowed := func(old []byte) func() {
		return func() {
			if v := bundle.Review(old, text, bundletest.At(), nil); !v.Allowed {
				t.Fatalf("denied: %v", v.Reasons)
			}
		}
	}
	return map[string]func(){
		"rotation": allowed(old),
		"creation": allowed(nil),
		"kubelet": func() {
			if _, err := cert.ParseCertsPEM(text); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// ratio is how many times as much processor time as base work takes, garbage collection included. Both are run in turn, so
// that other work on the machine disturbs both alike, and processor time is disturbed the least, until long is used up.
func ratio(t *testing.T, long time.Duration, work, base func()) float64 {
	t.Helper()
	if testing.CoverMode() != "" {
		t.Skip("counting what is covered takes time in this package alone")
	}
	var ours, theirs time.Duration
	spent := func(run func()) time.Duration {
		before := processorTime(t)
		for range 4 {
			run()
		}
		return processorTime(t) - before
	}
	for ours+theirs < long {
		theirs += spent(base)
		ours += spent(work)
	}
	return float64(ours) / float64(theirs)
}

func TestAReviewCostsLittleMoreThanTheKubeletsParser(t *testing.T) {
	const most = 1.5
	for _, n := range sizes {
		old, text := rotation(t, n)
		work := costs(t, old, text)
		for _, name := range []string{"rotation", "creation"} {
			times := ratio(t, time.Second, work[name], work["kubelet"])
			t.Logf("%s of %d certificates: %.2f times the kubelet's parser", name, n, times)
			if times > most {
				t.Errorf("a %s of %d certificates takes %.2f times the kubelet's parser, want at most %.1f", name, n, times, most)
			}
		}
	}
}

func TestTheTimeIsLinearInTheBytes(t *testing.T) {
	ca := string(bundletest.Named(t, "signer").PEM)
	body := strings.Join(strings.Split(ca, "\n")[1:8], "\n") + "\n"
	for name, piece := range map[string]string{
		"certificates":     ca,
		"BEGIN lines":      begin + "\n",
		"END lines":        end + "\n",
		"joined markers":   end + begin + "\n",
		"headers":          "A: b\n",
		"open blocks":      begin + "\n" + body,
		"base64":           body,
		"dashes":           "-----\n",
		"dashes in a line": "-- ",
		"almost markers":   "-- BEGIN ",
		"invisible":        "\u200b",
		"NUL":              "\x00",
		"one long word":    "Aa1",
		"equals signs":     "=",
	} {
		t.Run(name, func(t *testing.T) {
			review := func(bytes, times int) func() {
				text := []byte(ca + begin + "\n" + strings.Repeat(piece, bytes/len(piece)))
				return func() {
					for range times {
						bundle.Review(nil, text, bundletest.At(), nil)
					}
				}
			}
			const small, factor = 1 << 17, 8 // to a megabyte, the most that a ConfigMap holds
			if times := ratio(t, 200*time.Millisecond, review(small*factor, 1), review(small, factor)); times > 3 {
				t.Errorf("one text takes %.1f times as long as %d that are as long together", times, factor)
			}
		})
	}
}
