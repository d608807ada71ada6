package bundle

import (
	"bytes"
	"crypto/x509"
	"time"
)

// Verdict is what [Review] finds.
type Verdict struct {
	// Allowed says whether the change may be made. It is so exactly when there are no Reasons.
	Allowed bool
	// Reasons are all the faults for which it may not.
	Reasons []Finding
	// Warnings are what is worth knowing; they never deny.
	Warnings []Finding
	// Certificates is how many distinct certificates an allowed bundle holds; 0 where it is denied or cannot be read.
	Certificates int
	// SHA256 is the hash of an allowed bundle's canonical form; empty where it is denied or cannot be read.
	SHA256 string
}

// Review judges the change from the bundle old to the bundle new at the time now. A nil old means that there was none. It
// is the one gate: at admission, before delivery, and on the command line.
//
// The same bytes are allowed whatever they are, so that an edit of metadata never suffers from an old fault. A broken old
// bundle may be repaired; the certificates that could still be read from it count as there.
func Review(old, new []byte, now time.Time, allow Allowances) Verdict {
	if old != nil && bytes.Equal(old, new) {
		return unchanged(new)
	}
	known := certificates{}
	before, _ := parse(old, known)
	after, findings := parse(new, known)
	r := &review{now: now, allow: allow, before: before, after: after, defects: map[*x509.Certificate][]defect{}}
	r.reasons = findings
	r.inspect()
	r.countNames()
	if !unreadable(findings) {
		r.compare()
	}
	v := Verdict{Allowed: len(r.reasons) == 0, Reasons: r.reasons, Warnings: r.warnings}
	if v.Allowed {
		v.describe(after)
	}
	return v
}

// ReviewDeletion judges the deletion of a bundle: it is never right while a kubelet depends on it.
func ReviewDeletion() Verdict {
	return Verdict{Reasons: []Finding{finding(Deletion, "the bundle must not be deleted: kubelets and the courier depend on it; "+
		"change its content instead")}}
}

// unchanged is the verdict on the bytes that are there already.
func unchanged(data []byte) Verdict {
	v := Verdict{Allowed: true}
	if b, findings := Parse(data); len(findings) == 0 {
		v.describe(b)
	}
	return v
}

// describe notes what an allowed bundle holds.
func (v *Verdict) describe(b *Bundle) {
	v.Certificates, v.SHA256 = len(b.fingerprints()), b.Hash()
}

// review is a judgement in progress.
type review struct {
	now               time.Time
	allow             Allowances
	before, after     *Bundle
	reasons, warnings []Finding
	defects           map[*x509.Certificate][]defect // of the certificates looked at so far
}

// deny notes a reason.
func (r *review) deny(f Finding) { r.reasons = append(r.reasons, f) }

// warn notes a warning.
func (r *review) warn(f Finding) { r.warnings = append(r.warnings, f) }

// usable says whether a kubelet would accept now what c signed.
func (r *review) usable(c Certificate) bool {
	return validAt(c.X509, r.now) && len(r.defectsOf(c)) == 0
}

// defectsOf lists c's defects, worked out once.
func (r *review) defectsOf(c Certificate) []defect {
	found, done := r.defects[c.X509]
	if !done {
		found = defects(c.X509)
		r.defects[c.X509] = found
	}
	return found
}

// inspect judges every certificate of the new bundle by itself. One that the old bundle had too is never denied: only its
// coming is a fault of this change.
func (r *review) inspect() {
	had := r.before.fingerprints()
	first := make(map[Fingerprint]int, len(r.after.Certificates))
	for _, c := range r.after.Certificates {
		if position, again := first[c.Fingerprint]; again {
			r.warn(c.finding(Duplicate, "the same certificate as number %d; once is enough", position))
			continue
		}
		first[c.Fingerprint] = c.Position
		note := r.deny
		if _, found := had[c.Fingerprint]; found {
			note = r.warn
		}
		for _, d := range r.defectsOf(c) {
			note(c.finding(d.code, "%s", d.why))
		}
		r.inspectTime(c)
		if weakSignature(c.X509) {
			r.warn(c.finding(WeakSignature, "it is signed with %s; a kubelet does not verify that, other programs may refuse it",
				c.X509.SignatureAlgorithm))
		}
	}
}

// inspectTime warns about a certificate's validity.
func (r *review) inspectTime(c Certificate) {
	from, until := c.X509.NotBefore.UTC(), c.X509.NotAfter.UTC()
	switch {
	case r.now.Before(from):
		r.warn(c.finding(NotYetValid, "it is valid from %s", from.Format(time.RFC3339)))
	case r.now.After(until):
		r.warn(c.finding(Expired, "it ended at %s; it can be taken out", until.Format(time.RFC3339)))
	case until.Before(r.now.Add(soon)):
		r.warn(c.finding(ExpiresSoon, "it ends at %s; its successor should be in the bundle by now", until.Format(time.RFC3339)))
	}
}

// Limits beyond which a kubelet that has the bundle can answer no one.
const (
	// maxNames is what remains for the CA names in a TLS CertificateRequest behind its two-byte lengths
	// (RFC 8446 section 4.2.4); each name has a two-byte length of its own.
	maxNames = 65533
	// maxSameSubject is the number of candidates that crypto/x509 tries for one issuer (maxChainSignatureChecks).
	maxSameSubject = 100
)

// countNames judges the subject names of the new bundle, duplicates included.
func (r *review) countNames() {
	total := 0
	bySubject := map[string]int{}
	for _, c := range r.after.Certificates {
		total += len(c.X509.RawSubject) + 2
		bySubject[string(c.X509.RawSubject)]++
		if bySubject[string(c.X509.RawSubject)] == maxSameSubject+1 {
			r.deny(c.finding(TooManyCAs, "more than %d certificates have this subject: the kubelet gives up before it has tried "+
				"all; take out those that are not needed", maxSameSubject))
		}
	}
	if total > maxNames {
		r.deny(finding(TooManyCAs, "the subject names take %d bytes and TLS can carry %d: the kubelet could answer no one; "+
			"take out certificates that are not needed", total, maxNames))
	}
}

// compare judges what the new bundle no longer does, given that all of it could be read.
func (r *review) compare() {
	usable := false
	heirs := map[string][]Certificate{} // usable certificates by subject
	for _, c := range r.after.Certificates {
		if r.usable(c) {
			usable = true
			heirs[string(c.X509.RawSubject)] = append(heirs[string(c.X509.RawSubject)], c)
		}
	}
	if !usable {
		r.deny(finding(NoUsableCA, "no CA in the bundle would verify a client certificate now; add one that does"))
	}
	for _, gone := range Missing(r.before, r.after) {
		if !r.usable(gone) || !gone.X509.NotAfter.After(r.now.Add(ClockSkew)) {
			continue
		}
		r.judgeDrop(gone, heirs[string(gone.X509.RawSubject)])
	}
}

// judgeDrop judges that a valid CA is gone.
func (r *review) judgeDrop(gone Certificate, heirs []Certificate) {
	for _, heir := range heirs {
		if covers(heir.X509, gone.X509) {
			r.warn(gone.finding(Reissued, "it is gone from the bundle; number %d, sha256 %s, has the same key and subject and takes over",
				heir.Position, heir.Fingerprint))
			return
		}
	}
	if _, allowed := r.allow[gone.Fingerprint]; allowed {
		r.warn(gone.finding(AllowedDrop, "it is gone from the bundle although it is valid, as allowed: what it signed will be refused"))
		return
	}
	r.deny(gone.finding(DropsValidCA, "it is valid until %s and would be gone from the bundle: kubelets would refuse what it signed; "+
		"keep it, or allow the drop by its fingerprint", gone.X509.NotAfter.UTC().Format(time.RFC3339)))
}
