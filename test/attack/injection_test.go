package attack

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/webhook"
)

// subjects would end a line, colour a terminal, turn the reading direction around, or forge another message.
func subjects() []string {
	return []string{
		"two\nlines", "return\rover", "\x1b[2J\x1b[31mred", "\x1b]0;title\a", "nul\x00inside", "a\u202egnp.exe", "zero\u200bwidth",
		"\u2066isolate\u2069", "paragraph\u2029separator", "line\u2028separator", "\u0085next line", "\u009b31m", `quoted" level=error msg="forged`,
		strings.Repeat("long", 5000),
	}
}

// withSubject is a CA of that name, whose time is over, so that every message names it.
func withSubject(t *testing.T, name string, until time.Time) bundletest.CA {
	t.Helper()
	value := asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(name)}
	sequence := pkix.RDNSequence{pkix.RelativeDistinguishedNameSET{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: value}}}
	return bundletest.NewCA(t, bundletest.Spec{RawSubject: bundletest.Marshal(t, sequence), Until: until})
}

// harmless fails for a text that a terminal or a log would not show as one plain line.
func harmless(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			t.Errorf("%s holds %U: %.200q", what, r, text)
			return
		}
	}
	if len(text) > 1500 {
		t.Errorf("%s has %d bytes", what, len(text))
	}
}

func TestNoSubjectOfACertificateGetsIntoAMessageAsItIs(t *testing.T) {
	good := bundletest.Named(t, "good")
	for _, subject := range subjects() {
		t.Run(fmt.Sprintf("%.20q", subject), func(t *testing.T) {
			valid := withSubject(t, subject, time.Time{})
			ended := withSubject(t, subject, bundletest.At().Add(-time.Hour))
			denied := bundle.Review(bundletest.Bundle(good, valid), bundletest.Bundle(good), bundletest.At(), nil)
			warned := bundle.Review(nil, bundletest.Bundle(good, ended, ended), bundletest.At(), nil)
			if denied.Allowed || len(warned.Warnings) < 2 {
				t.Fatalf("the subject is in no message: %v %v", denied, warned.Warnings)
			}
			for _, f := range append(denied.Reasons, warned.Warnings...) {
				harmless(t, "the message "+string(f.Code), f.Message)
			}
			held := dispatcher.Hold{Code: denied.Reasons[0].Code, Message: denied.Reasons[0].Message}
			harmless(t, "what is held", held.String())
		})
	}
}

func TestNoAnnotationGetsIntoAMessageAsItIs(t *testing.T) {
	good := bundletest.Named(t, "good")
	for _, text := range subjects() {
		changed := &corev1.ConfigMap{Data: map[string]string{"ca": string(good.PEM)}}
		changed.Annotations = map[string]string{bundle.AllowanceAnnotation: text}
		v := webhook.Judge("ca", &corev1.ConfigMap{Data: changed.Data}, changed, bundletest.At())
		if v.Allowed {
			t.Errorf("an annotation of %.20q is taken for fingerprints", text)
		}
		for _, f := range v.Reasons {
			for line := range strings.Lines(f.Message) {
				harmless(t, "the message about the annotation", strings.TrimSuffix(line, "\n"))
			}
		}
	}
}
