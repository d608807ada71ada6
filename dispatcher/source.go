package dispatcher

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"kubelet-ca-courier/bundle"
)

// Codes of holds that are not the gate's own.
const (
	// SourceMissing says that the ConfigMap or its key is not there.
	SourceMissing bundle.Code = "SourceMissing"
	// SourceUnreadable says that the API server would not hand the ConfigMap out.
	SourceUnreadable bundle.Code = "SourceUnreadable"
)

// Content is what was found at one source.
type Content struct {
	// Data is the bundle as it stands there; nil when there is none.
	Data []byte
	// AllowDrop is the break-glass annotation; it counts on the guarded ConfigMap alone.
	AllowDrop string
	// UID is the ConfigMap's, for events about it.
	UID types.UID
	// Err says why it may not be read.
	Err error
}

// readContent turns the answer of a read into content. The key may be in either of a ConfigMap's maps: a kubelet lays
// both out in the same way.
func readContent(ref Ref, cm *corev1.ConfigMap, err error) Content {
	if apierrors.IsNotFound(err) {
		return Content{}
	}
	if err != nil {
		return Content{Err: err}
	}
	c := Content{AllowDrop: cm.Annotations[bundle.AllowanceAnnotation], UID: cm.UID}
	if text, ok := cm.Data[ref.Key]; ok {
		c.Data = []byte(text)
	} else if data, ok := cm.BinaryData[ref.Key]; ok {
		c.Data = data
	}
	return c
}

// Hold says why something is not delivered as its source has it.
type Hold struct {
	// Source is the one at fault; the zero value stands for the union of all.
	Source Ref
	// Code is stable and machine-readable.
	Code bundle.Code
	// Message is for people. It never holds any content of a bundle.
	Message string
}

// String returns the hold in one line.
func (h Hold) String() string {
	if h.Source == (Ref{}) {
		return fmt.Sprintf("%s: %s", h.Code, h.Message)
	}
	return fmt.Sprintf("%s: %s: %s", h.Source, h.Code, h.Message)
}

// Candidate is what the sources together say that nodes should hold.
type Candidate struct {
	// PEM is the canonical union; empty when nothing can be delivered yet.
	PEM []byte
	// Hash is the hexadecimal SHA-256 of PEM.
	Hash string
	// Contributions says what came from where.
	Contributions Contributions
	// Allow is what the break-glass annotation lets go.
	Allow bundle.Allowances
	// Holds are the faults of single sources, for which their last good content stands in.
	Holds []Hold
}

// Assemble makes one candidate of all sources. One rule for all: a source that is missing, malformed, or denied by the
// gate contributes what it contributed before; so no source can block another or take anything away by going bad. One that
// is denied for nothing but the CAs it dropped contributes those together with what it has now.
// Only two things yield no candidate at all: the guarded ConfigMap, or a required source, that never contributed.
func Assemble(s Settings, contents map[Ref]Content, current *Snapshot, now time.Time) Candidate {
	c := Candidate{Contributions: Contributions{}}
	allow, err := bundle.ParseAllowances(contents[s.Guarded].AllowDrop)
	if err != nil {
		c.Holds = append(c.Holds, Hold{s.Guarded, bundle.BadAllowance, err.Error()})
	}
	c.Allow = allow
	complete := true
	var parts []part
	for _, source := range append([]Source{{Ref: s.Guarded, Required: true}}, s.ExtraSources...) {
		content := contents[source.Ref]
		before := without(current.contributed(source.Ref), allow, content.Data)
		is, holds := review(source, content, before, allow, now)
		c.Holds = append(c.Holds, holds...)
		if is == nil {
			complete = complete && !source.Required
			continue
		}
		parts = append(parts, part{source, is, before})
	}
	union, holds := unite(parts, now)
	c.Holds = append(c.Holds, holds...)
	for _, p := range parts {
		if p.is == nil {
			complete = complete && !p.source.Required
			continue
		}
		c.Contributions[p.source.String()] = fingerprints(p.is)
	}
	if complete {
		c.PEM, c.Hash = union.Canonical(), union.Hash()
	}
	return c
}

// part is what one source contributes, and what it did before.
type part struct {
	source     Source
	is, before *bundle.Bundle
}

// unite merges the parts. Together they may be too many where each alone is not: then the first, which is the guarded
// ConfigMap, goes before the others, and one for which there is no room contributes what it did before, or nothing.
func unite(parts []part, now time.Time) (*bundle.Bundle, []Hold) {
	union := &bundle.Bundle{}
	for _, p := range parts {
		union = bundle.Merge(union, p.is)
	}
	if tooMany(union, now) == nil {
		return union, nil
	}
	var holds []Hold
	union = &bundle.Bundle{}
	for i, p := range parts {
		all := bundle.Merge(union, p.is)
		if fault := tooMany(all, now); fault != nil && i > 0 {
			holds = append(holds, Hold{p.source.Ref, fault.Code, "together with the sources before it: " + fault.Message})
			parts[i].is = p.before
			if p.before == nil {
				continue
			}
			all = bundle.Merge(union, p.before)
		}
		union = all
	}
	return union, holds
}

// tooMany returns what the gate says of a bundle that has more names than a kubelet can carry, or nil.
func tooMany(b *bundle.Bundle, now time.Time) *bundle.Finding {
	for _, finding := range bundle.Review(nil, b.Canonical(), now, nil).Reasons {
		if finding.Code == bundle.TooManyCAs {
			return &finding
		}
	}
	return nil
}

// without returns what a source contributed before, less what break-glass lets go and the source does not have any more:
// whatever else is wrong with the source must not keep that on the nodes.
func without(before *bundle.Bundle, allow bundle.Allowances, content []byte) *bundle.Bundle {
	if before == nil || len(allow) == 0 {
		return before
	}
	is, _ := bundle.Parse(content)
	kept := &bundle.Bundle{}
	for _, c := range before.Certificates {
		_, named := allow[c.Fingerprint]
		if !named || slices.ContainsFunc(is.Certificates, func(there bundle.Certificate) bool { return there.Fingerprint == c.Fingerprint }) {
			kept.Certificates = append(kept.Certificates, c)
		}
	}
	if len(kept.Certificates) == 0 {
		return nil
	}
	return kept
}

// review returns what a source contributes, and why that is not what it holds.
func review(source Source, content Content, before *bundle.Bundle, allow bundle.Allowances, now time.Time) (*bundle.Bundle, []Hold) {
	switch {
	case content.Err != nil:
		return before, []Hold{{source.Ref, SourceUnreadable, content.Err.Error()}}
	case content.Data == nil && before == nil && !source.Required:
		return nil, nil
	case content.Data == nil:
		return before, []Hold{{source.Ref, SourceMissing, "the ConfigMap or its key is not there"}}
	}
	parsed, findings := bundle.Parse(content.Data)
	if len(findings) == 0 && before != nil && bundle.SameSet(before, parsed) {
		return before, nil
	}
	var old []byte
	if before != nil {
		old = before.Canonical()
	}
	verdict := bundle.Review(old, content.Data, now, allow)
	if verdict.Allowed {
		return parsed, nil
	}
	return keeping(before, old, parsed, verdict, allow, now), holdsOf(source.Ref, verdict)
}

// keeping returns what a denied source contributes: what it did before, and if the gate minds nothing but what was dropped,
// what it has now as well. Without the latter a drop that slipped in while the webhook was away would also hold back every
// later signer, until the API server's client certificate is signed by one that no node knows.
func keeping(
	before *bundle.Bundle, old []byte, parsed *bundle.Bundle, verdict bundle.Verdict, allow bundle.Allowances, now time.Time,
) *bundle.Bundle {
	for _, finding := range verdict.Reasons {
		if finding.Code != bundle.DropsValidCA {
			return before
		}
	}
	both := bundle.Merge(before, parsed)
	if !bundle.Review(old, both.Canonical(), now, allow).Allowed {
		return before // together they are too many
	}
	return both
}

// Judge puts the candidate through the same gate that admission has, against what was delivered last. What admission let
// through while the webhook was away stops here.
func Judge(c Candidate, current *Snapshot, now time.Time) bundle.Verdict {
	var old []byte
	if current != nil {
		old = current.PEM
	}
	return bundle.Review(old, c.PEM, now, c.Allow)
}

func holdsOf(ref Ref, verdict bundle.Verdict) []Hold {
	var holds []Hold
	for _, finding := range verdict.Reasons {
		holds = append(holds, Hold{ref, finding.Code, finding.Message})
	}
	return holds
}

// fingerprints returns the sorted fingerprints of a bundle.
func fingerprints(b *bundle.Bundle) []string {
	var all []string
	for _, certificate := range b.Certificates {
		all = append(all, certificate.Fingerprint.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}
