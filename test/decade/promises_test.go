package decade

import (
	"slices"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/node"
)

// The promises, checked after every step of every run.
const (
	// rightWriteRefused: no write of the operator or the recovery writer is ever refused by the gate.
	rightWriteRefused = "a right write was refused"
	// lockedOut: no node that was Ready for an hour refuses the API server's current client certificate.
	lockedOut = "a Ready node refuses the API server"
	// kubeletCannotStart: no file that was landed, nor any on the way to it, is one that the kubelet could not start with.
	kubeletCannotStart = "the kubelet could not start"
	// uselessFile: no landing takes the last usable CA away.
	uselessFile = "a landing left no usable CA"
	// comeback: a CA that break-glass removed leaves the nodes and does not come back.
	comeback = "a CA that break-glass removed is on a node"
	// olderAfterNewer: no older bundle is written after a newer one.
	olderAfterNewer = "an older bundle was landed after a newer one"
	// twoLandings: two bundles are never being landed on one node at once. (The same one may be, after somebody deleted a
	// Job under way: both write the same, each whole or not at all.)
	twoLandings = "two bundles at once on one node"
	// wrongFile: what a landing that succeeded leaves is the bundle it was asked for.
	wrongFile = "a landing that succeeded left another file"
	// notRepaired: a file that somebody else wrote is put right by the next look at the node.
	notRepaired = "a node's file was not put right"
)

// grace is how long a node may take once everything that a delivery needs is there.
const grace = time.Hour

// longestRetry is how long a node waits that has failed again and again (dispatcher's retryAfter).
const longestRetry = 72 * time.Minute

// view is what the promises are checked against.
type view struct {
	// trusted is since when each CA is in the guarded ConfigMap without a break, by fingerprint.
	trusted map[bundle.Fingerprint]time.Time
	// sound is since when the guarded ConfigMap is well-formed.
	sound since
	// working is since when there is a courier with a configuration.
	working since
	// current is the snapshot to be delivered, changed when it became that, and there since when there is any.
	current *bundle.Bundle
	hash    string
	changed time.Time
	there   since
	// order numbers the bundles as they became the current one.
	order  map[string]int
	orders int
	// banned are the CAs that break-glass removed: since when no source has them.
	banned map[bundle.Fingerprint]*since
}

// seeSources follows what the sources and the snapshots hold.
func (w *world) seeSources(k id, _, _ client.Object) {
	v := &w.view
	if v.trusted == nil {
		v.trusted, v.order, v.banned = map[bundle.Fingerprint]time.Time{}, map[string]int{}, map[bundle.Fingerprint]*since{}
	}
	switch {
	case k == guardedID() || k == managedID():
		w.seeSource()
	case k.kind == "configmaps" && k.namespace == dispatcher.JobsNamespace:
		s := w.snapshot()
		v.there.set(s != nil, w.now)
		if s == nil {
			v.current, v.hash = nil, ""
		} else if s.Hash != v.hash {
			v.orders++
			v.order[s.Hash] = v.orders
			v.current, _ = bundle.Parse(s.PEM)
			v.hash, v.changed = s.Hash, w.now
			w.tell("snapshot %s is current, %d CAs", s.Hash[:8], len(v.current.Certificates))
		}
	}
}

func (w *world) seeSource() {
	v := &w.view
	text := ""
	if cm := w.api.configMap(guardedNamespace, guardedName); cm != nil {
		text = cm.Data[bundleKey]
	}
	held, findings := bundle.Parse([]byte(text))
	v.sound.set(len(findings) == 0, w.now)
	before := v.trusted
	v.trusted = map[bundle.Fingerprint]time.Time{}
	for _, c := range held.Certificates {
		v.trusted[c.Fingerprint] = w.now
		if from, found := before[c.Fingerprint]; found {
			v.trusted[c.Fingerprint] = from
		}
	}
	managed := &bundle.Bundle{}
	if cm := w.api.configMap(managedNamespace, managedName); cm != nil {
		managed, _ = bundle.Parse([]byte(cm.Data[bundleKey]))
	}
	for fingerprint, ban := range v.banned {
		if _, back := v.trusted[fingerprint]; back {
			delete(v.banned, fingerprint) // somebody put it back
			continue
		}
		ban.set(!contains(managed, fingerprint), w.now)
	}
}

func contains(b *bundle.Bundle, f bundle.Fingerprint) bool {
	return slices.ContainsFunc(b.Certificates, func(c bundle.Certificate) bool { return c.Fingerprint == f })
}

// check checks the promises that hold at every moment.
func (w *world) check() {
	w.view.working.set(w.courier.alive.on && w.courier.configured() && w.powered.on, w.now)
	for _, m := range w.nodes {
		if m.exists && m.ready.on && w.broken == nil {
			w.checkNode(m)
		}
	}
}

// checkNode checks a Ready node, from when on all was there that a delivery to it needs.
func (w *world) checkNode(m *machine) {
	v := &w.view
	if !v.working.on || !w.api.up.on || !w.courier.enforce.on || !v.sound.on || !v.there.on {
		return
	}
	from := latest(m.ready.from, m.well, v.working.from, w.api.up.from, w.courier.enforce.from, v.sound.from, v.there.from, w.powered.from)
	if m.foreign.on {
		from = latest(from, m.foreign.from.Add(w.history.lookAgain+longestRetry))
	}
	if w.now.Sub(from) < grace {
		return
	}
	o := w.operator
	if clock := w.now.Add(m.off); o.presented != nil && !clock.Before(o.presented.NotBefore) && clock.Before(o.presented.NotAfter) {
		added, there := v.trusted[o.presentedBy.fingerprint]
		if there && w.now.Sub(latest(from, added)) >= grace && !m.accepts(o.presented) {
			w.violate(lockedOut, "%s was well since %s, its signer %s is in the bundle since %s, and the kubelet refuses the API server",
				m.name, stamp(from), short(o.presentedBy.fingerprint), stamp(added))
		}
	}
	for fingerprint, ban := range v.banned {
		if ban.on && w.now.Sub(latest(from, ban.from)) >= grace && m.holds(fingerprint) {
			w.violate(comeback, "%s holds %s, which no source has since %s", m.name, short(fingerprint), stamp(ban.from))
		}
	}
	if w.now.Sub(latest(from, v.changed)) > w.history.lookAgain+longestRetry+grace && m.differs() {
		w.violate(notRepaired, "%s was well since %s, and its file is not the bundle that is current since %s", m.name, stamp(from), stamp(v.changed))
	}
}

func stamp(t time.Time) string { return t.Format("2006-01-02 15:04") }

func latest(times ...time.Time) time.Time {
	return slices.MaxFunc(times, func(a, b time.Time) int { return a.Compare(b) })
}

// remembered is what was found out about a file; it is asked at every step.
type remembered struct {
	text   []byte
	bundle *bundle.Bundle
}

// file is the node's file, parsed.
func (m *machine) file() *bundle.Bundle {
	text := m.disk.files[destination]
	if m.remembered.bundle == nil || !same(text, m.remembered.text) {
		m.remembered.text = text
		m.remembered.bundle, _ = bundle.Parse(text)
	}
	return m.remembered.bundle
}

// same says whether two slices are one: contents here never change in place.
func same(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

func (m *machine) holds(f bundle.Fingerprint) bool { return contains(m.file(), f) }

func (m *machine) differs() bool { return !bundle.SameSet(m.file(), m.w.view.current) }

// looked checks a node's file after every step of a landing.
func (w *world) looked(m *machine) {
	text, exists := m.disk.files[destination]
	if same(text, m.looked) || m.foreign.on {
		return
	}
	if exists || m.looked != nil {
		if _, err := dynamiccertificates.NewStaticCAContent("client-ca", text); err != nil {
			w.violate(kubeletCannotStart, "%s: in the middle of a landing the file is one that a kubelet refuses: %v", m.name, err)
		}
	}
	m.looked = text
}

// landed checks a landing that came to its end.
func (w *world) landed(m *machine, task node.Task, before []byte, result node.Result) {
	if task.Mode != node.Write || result.Code != node.ExitOK && result.Code != node.ExitNotConfirmed {
		if task.Mode == node.Write {
			w.tell("%s: the landing fails: %s", m.name, result.Error)
		}
		return
	}
	if result.Outcome == node.Replaced || result.Outcome == node.Created {
		w.stats[replaced]++
		w.tell("%s: landed %s", m.name, task.SHA256[:8])
	}
	m.foreign.set(false, w.now)
	if order := w.view.order[task.SHA256]; order < m.landed {
		w.violate(olderAfterNewer, "%s: bundle %s, number %d, was landed after number %d", m.name, task.SHA256[:8], order, m.landed)
	} else {
		m.landed = order
	}
	if m.file().Hash() != task.SHA256 {
		w.violate(wrongFile, "%s: the file is not bundle %s", m.name, task.SHA256[:8])
	}
	was, _ := bundle.Parse(before)
	if w.usable(m, was) && !w.usable(m, m.file()) {
		w.violate(uselessFile, "%s: bundle %s has no CA that is usable", m.name, task.SHA256[:8])
	}
}

func (w *world) usable(m *machine, b *bundle.Bundle) bool {
	return slices.ContainsFunc(b.Certificates, func(c bundle.Certificate) bool { return len(c.Unusable(w.now.Add(m.off))) == 0 })
}
