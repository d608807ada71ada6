package bundle

import (
	"bytes"
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
	// Bundle is what an allowed bundle holds; nil where it is denied, or unchanged and not well-formed.
	Bundle *Bundle
}

// Certificates is how many distinct certificates an allowed bundle holds; 0 where there is none to look at.
func (v Verdict) Certificates() int {
	if v.Bundle == nil {
		return 0
	}
	return len(v.Bundle.fingerprints())
}

// SHA256 is the hash of an allowed bundle's canonical form; empty where there is none to look at.
func (v Verdict) SHA256() string {
	if v.Bundle == nil {
		return ""
	}
	return v.Bundle.Hash()
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
	known := newMemory()
	before, _ := parse(old, known)
	after, findings := parse(new, known)
	r := &review{now: now, allow: allow, before: before, after: after, reasons: findings}
	r.inspect()
	r.countNames()
	if !unreadable(findings) {
		r.compare()
	}
	v := Verdict{Allowed: len(r.reasons) == 0, Reasons: r.reasons, Warnings: r.warnings}
	if v.Allowed {
		v.Bundle = after
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
		v.Bundle = b
	}
	return v
}

// review is a judgement in progress.
type review struct {
	now               time.Time
	allow             Allowances
	before, after     *Bundle
	there             map[Fingerprint]int      // position in the new bundle
	had               map[Fingerprint]struct{} // the old bundle's, once somebody asked
	usable            []Certificate            // of the new bundle, by any clock within the skew
	reasons, warnings []Finding
}

// deny notes a reason.
func (r *review) deny(f Finding) { r.reasons = append(r.reasons, f) }

// warn notes a warning.
func (r *review) warn(f Finding) { r.warnings = append(r.warnings, f) }

// inspect judges every certificate of the new bundle by itself.
func (r *review) inspect() {
	r.there = make(map[Fingerprint]int, len(r.after.Certificates))
	for _, c := range r.after.Certificates {
		if position, again := r.there[c.Fingerprint]; again {
			r.warn(c.finding(Duplicate, "the same certificate as number %d; once is enough", position))
			continue
		}
		r.there[c.Fingerprint] = c.Position
		if faults := defects(c.X509); len(faults) > 0 {
			r.blame(c, faults)
		} else if validAt(c.X509, r.now) || begins(c.X509, r.now) {
			r.usable = append(r.usable, c)
		}
		r.inspectTime(c)
		if weakSignature(c.X509) {
			r.warn(c.finding(WeakSignature, "it is signed with %s; a kubelet does not verify that, other programs may refuse it",
				c.X509.SignatureAlgorithm))
		}
	}
}

// blame denies a certificate for its defects. One that the old bundle had too is never denied: only its coming is a fault
// of this change.
func (r *review) blame(c Certificate, faults []defect) {
	if r.had == nil {
		r.had = r.before.fingerprints()
	}
	note := r.deny
	if _, found := r.had[c.Fingerprint]; found {
		note = r.warn
	}
	for _, d := range faults {
		note(c.finding(d.code, "%s", d.why))
	}
}

// inspectTime warns about a certificate's validity.
func (r *review) inspectTime(c Certificate) {
	from, until := c.X509.NotBefore, c.X509.NotAfter
	switch {
	case r.now.Before(from):
		r.warn(c.finding(NotYetValid, "it is valid from %s", stamp(from)))
	case r.now.After(until):
		r.warn(c.finding(Expired, "it ended at %s; it can be taken out", stamp(until)))
	case !until.After(r.now.Add(soon)):
		r.warn(c.finding(ExpiresSoon, "it ends at %s; its successor should be in the bundle by now", stamp(until)))
	}
}

// Limits beyond which a kubelet that has the bundle can answer no one.
const (
	// maxNames is what a TLS CertificateRequest has room for. All of its extensions take at most 65,535 bytes together
	// (RFC 8446 section 4.3.2), and the CA names are one of them (section 4.2.4), each name with a length of two bytes. Those
	// beside it take some 70 bytes in Go today; the room left lets them grow.
	maxNames = 65000
	// maxSameSubject is the number of candidates that crypto/x509 tries for one issuer (maxChainSignatureChecks).
	maxSameSubject = 100
)

// countNames judges the subject names of the new bundle. A kubelet drops duplicates.
func (r *review) countNames() {
	total, bySubject := 0, map[string]int{}
	for _, c := range r.after.Certificates {
		if r.there[c.Fingerprint] != c.Position {
			continue
		}
		total += len(c.X509.RawSubject) + 2
		subject := string(c.X509.RawSubject)
		bySubject[subject]++
		if bySubject[subject] == maxSameSubject+1 {
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
	if len(r.usable) == 0 {
		r.deny(finding(NoUsableCA, "no CA in the bundle would verify a client certificate now; add one that does"))
	}
	var missing []Certificate
	for _, c := range r.before.Certificates {
		if _, kept := r.there[c.Fingerprint]; !kept {
			r.there[c.Fingerprint] = 0 // judged once, however often it was there
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return
	}
	heirs := map[string][]Certificate{}
	for _, c := range r.usable {
		if r.now.Before(c.X509.NotBefore) {
			continue // until it begins, kubelets would refuse what the CA that is gone signed
		}
		heirs[string(c.X509.RawSubject)] = append(heirs[string(c.X509.RawSubject)], c)
	}
	for _, gone := range missing {
		if len(gone.Unusable(r.now)) == 0 && gone.X509.NotAfter.After(r.now.Add(ClockSkew)) {
			r.judgeDrop(gone, heirs[string(gone.X509.RawSubject)])
		}
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
		"keep it, or allow the drop by its fingerprint", stamp(gone.X509.NotAfter)))
}

// stamp writes a time as messages do.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
