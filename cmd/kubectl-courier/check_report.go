package main

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/bundle"
)

// checked is the answer of check.
type checked struct {
	verdict bundle.Verdict
	before  *bundle.Bundle // nil where there was none
	after   *bundle.Bundle // nil for a deletion
	at      time.Time
}

// checkReport is the form of the answer that scripts read.
type checkReport struct {
	Verdict      string           `json:"verdict"`
	Reasons      []bundle.Finding `json:"reasons"`
	Warnings     []bundle.Finding `json:"warnings"`
	Certificates int              `json:"certificates"`
	SHA256       string           `json:"sha256"`
}

// report puts the answer into both forms.
func (c *checked) report(paint colours) report {
	data := checkReport{
		Verdict:      "deny",
		Reasons:      append([]bundle.Finding{}, c.verdict.Reasons...),
		Warnings:     append([]bundle.Finding{}, c.verdict.Warnings...),
		Certificates: c.verdict.Certificates(),
		SHA256:       c.verdict.SHA256(),
	}
	headline := paint.bad("denied")
	if c.verdict.Allowed {
		data.Verdict = "allow"
		headline = paint.good("allowed")
	}
	if c.verdict.Bundle != nil {
		headline += fmt.Sprintf(": %d certificates, sha256 %s", data.Certificates, data.SHA256)
	}
	r := report{
		kind:    "BundleReview",
		data:    data,
		summary: []string{headline},
		columns: []metav1.TableColumnDefinition{
			column("Position", false), column("Subject", false), column("Key", false), column("From", false), column("Until", false),
			column("Role", false), column("Change", false), column("SHA-256", true),
		},
	}
	for _, f := range c.verdict.Reasons {
		r.summary = append(r.summary, paint.bad(string(f.Code))+": "+f.Message)
	}
	for _, f := range c.verdict.Warnings {
		r.summary = append(r.summary, "warning: "+paint.warn(string(f.Code))+": "+f.Message)
	}
	r.rows = c.rows()
	return r
}

// rows are the certificates of the new bundle, and behind them those of the old that are gone.
func (c *checked) rows() []row {
	var rows []row
	if c.after == nil {
		return rows
	}
	added := map[bundle.Fingerprint]bool{}
	if c.before != nil {
		for _, certificate := range bundle.Missing(c.after, c.before) {
			added[certificate.Fingerprint] = true
		}
	}
	for _, certificate := range c.after.Certificates {
		change := ""
		switch {
		case c.before == nil:
		case added[certificate.Fingerprint]:
			change = "added"
		default:
			change = "kept"
		}
		rows = append(rows, c.row(certificate, fmt.Sprint(certificate.Position), change))
	}
	if c.before != nil {
		for _, certificate := range bundle.Missing(c.before, c.after) {
			rows = append(rows, c.row(certificate, "-", "gone"))
		}
	}
	return rows
}

// row is one certificate.
func (c *checked) row(certificate bundle.Certificate, position, change string) row {
	x := certificate.X509
	return row{cells: []any{
		position, certificate.Subject(), keyOf(x), x.NotBefore.UTC().Format(time.RFC3339), x.NotAfter.UTC().Format(time.RFC3339),
		c.role(certificate), change, certificate.Fingerprint.String(),
	}}
}

// role says what the certificate does in the file of a kubelet.
func (c *checked) role(certificate bundle.Certificate) string {
	faults := certificate.Unusable(c.at)
	if len(faults) == 0 {
		return "client CA"
	}
	all := make([]string, 0, len(faults))
	for _, code := range faults {
		all = append(all, string(code))
	}
	return "none: " + strings.Join(all, ", ")
}

// keyOf names the kind and size of the certificate's key.
func keyOf(c *x509.Certificate) string {
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", key.N.BitLen())
	case *ecdsa.PublicKey:
		return "ECDSA " + key.Params().Name
	case ed25519.PublicKey:
		return "Ed25519"
	}
	return c.PublicKeyAlgorithm.String()
}
