package decade

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/cert"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
)

// act does one thing of the history, and counts it if it found somebody to happen to.
func (w *world) act(a act) {
	if !w.powered.on {
		return // nobody is there
	}
	w.tell("--- %s", a.String()[21:])
	var happened bool
	if nodal[a.what] {
		a.node %= len(w.nodes)
		happened = w.nodes[a.node].exists && w.actOnNode(a, w.nodes[a.node])
	} else {
		happened = w.actOnCluster(a)
	}
	if happened {
		w.stats[counter(a.what)]++
	}
}

// actOnCluster says whether it happened.
func (w *world) actOnCluster(a act) bool {
	switch a.what {
	case nodeJoins:
		if !w.api.up.on || len(w.nodes) >= 8 {
			return false
		}
		w.join(fmt.Sprintf("win-%d", len(w.nodes)))
	case replicaAway:
		w.gate.outage(a.d, w.gate.replicas[a.n%len(w.gate.replicas)])
	case webhookAway:
		w.gate.outage(a.d, w.gate.replicas...)
	case gateRemoved:
		w.gate.installed = false
		w.after(a.d, func() { w.gate.installed = true })
	case dispatcherAway:
		w.courier.restart(a.d)
	case dispatcherCrash:
		w.courier.crashIn = 1 + a.n%8
	case apiAway:
		w.api.up.set(false, w.now)
		w.after(a.d, func() { w.api.up.set(w.powered.on, w.now) })
	case clusterOff:
		w.powerOff(a.d)
	case forcedRotation:
		w.operator.forced = true
		w.operator.plan(time.Second, userOperator)
	case breakGlass:
		w.operator.forced = true
		w.operator.plan(time.Second, userOperator)
		w.after(a.d, func() { w.breakGlass(a.n) })
	case mistake:
		return w.mistake(a.n)
	case metadata:
		w.metadata()
	case managedGone, managedBroken:
		w.breakManaged(a)
	default:
		w.actOnCourier(a)
	}
	return true
}

// actOnNode says whether it happened.
func (w *world) actOnNode(a act, m *machine) bool {
	switch a.what {
	case nodeLeaves:
		return m.leave()
	case nodeReplaced:
		left := m.leave()
		w.after(w.between("node/replaced", time.Second, time.Hour), func() {
			if !w.machine(m.name).exists && w.powered.on && w.api.up.on {
				w.join(m.name)
			}
		})
		return left
	case reboot, powerless:
		return m.away(a.d, true)
	case partition:
		return m.away(a.d, false)
	case kubeletRestarts:
		m.kubelet.content = nil
		m.start()
	case diskFull:
		m.disk.full = true
		w.after(a.d, func() { m.disk.full, m.well = false, w.now.Add(longestRetry) })
		m.well = w.now.Add(a.d + longestRetry)
	case fileBusy:
		m.disk.busy = true
		w.after(a.d, func() { m.disk.busy, m.well = false, w.now.Add(longestRetry) })
		m.well = w.now.Add(a.d + longestRetry)
	case landingKilled:
		m.stopAt = 1 + a.n%18
	case secondWriter:
		managed := w.api.configMap(managedNamespace, managedName)
		if managed == nil || !m.ready.on {
			return false
		}
		m.overwrite([]byte(managed.Data[bundleKey]))
	case vandal:
		m.overwrite([]byte("rubbish"))
	case jobDeleted:
		return w.api.remove(userAdmin, jobID(dispatcher.NodeKey(m.name))) == nil // there may be none
	}
	return true
}

// overwrite writes the file in place, as another program does that thinks it is its own.
func (m *machine) overwrite(text []byte) {
	m.disk.files[destination] = text
	m.looked = text
	m.foreign.set(true, m.w.now)
	m.foreign.from = m.w.now
	m.load()
}

func (w *world) actOnCourier(a act) {
	back := func() { w.courier.configure(func(text string) string { return text }) }
	switch a.what {
	case observeMode:
		w.courier.configure(func(text string) string { return strings.Replace(text, "mode: enforce", "mode: observe", 1) })
		w.after(a.d, back)
	case badConfiguration:
		w.courier.configure(func(text string) string { return strings.Replace(text, "destination", "destinaton", 1) })
		w.after(a.d, back)
	case newImage:
		w.courier.configure(func(text string) string {
			return strings.Replace(text, "node:dev", fmt.Sprintf("node:v%d", a.n), 1)
		})
	case snapshotsDeleted, jobsEmptied:
		for _, object := range w.api.all("configmaps", dispatcher.JobsNamespace) {
			_ = w.api.remove(userAdmin, id{"configmaps", dispatcher.JobsNamespace, object.GetName()}) // the API server may be away
		}
		if a.what == jobsEmptied {
			for _, object := range w.api.all("jobs", dispatcher.JobsNamespace) {
				_ = w.api.remove(userAdmin, jobID(object.GetName())) // the API server may be away
			}
		}
	}
}

// powerOff turns the whole cluster off, and on again in the order in which clusters come up: API server, recovery writer,
// nodes, pods.
func (w *world) powerOff(d time.Duration) {
	w.powered.set(false, w.now)
	w.api.up.set(false, w.now)
	w.courier.stop()
	for _, r := range w.gate.replicas {
		r.up = false
	}
	for _, m := range w.nodes {
		if m.exists {
			m.ready.set(false, w.now)
			w.api.change(id{"nodes", "", m.name}, setNotReady(m))
			m.crash()
		}
	}
	w.after(d, func() {
		w.powered.set(true, w.now)
		w.api.up.set(true, w.now)
		w.operator.plan(w.between("recovery", 2*time.Minute, 10*time.Minute), userRecovery)
		for _, m := range w.nodes {
			w.after(w.between("boot", 3*time.Minute, 30*time.Minute), func() { m.back(true) })
		}
		for _, r := range w.gate.replicas {
			w.after(w.between("webhook/boot", 5*time.Minute, time.Hour), func() { r.up = w.powered.on })
		}
		life := w.courier.life
		w.after(w.between("courier/boot", 5*time.Minute, time.Hour), func() {
			if w.powered.on && w.courier.life == life {
				w.courier.start()
			}
		})
	})
}

// breakGlass drops the signers before the current one, naming them in the annotation. It is tried until it works.
func (w *world) breakGlass(n int) {
	again := func() { w.after(10*time.Minute, func() { w.breakGlass(n) }) }
	was := w.api.configMap(guardedNamespace, guardedName)
	if was == nil || !w.powered.on {
		again()
		return
	}
	all, err := cert.ParseCertsPEM([]byte(was.Data[bundleKey]))
	if err != nil {
		again()
		return
	}
	held, _ := bundle.Parse([]byte(was.Data[bundleKey]))
	cm, kept := was.DeepCopy(), all[:0:0]
	var dropped []bundle.Fingerprint
	for _, c := range held.Certificates {
		if c.Fingerprint == w.operator.signer.fingerprint || !strings.Contains(c.X509.Subject.CommonName, "kube-apiserver-to-kubelet-signer@") {
			kept = append(kept, c.X509)
		} else {
			dropped = append(dropped, c.Fingerprint)
		}
	}
	if !contains(held, w.operator.signer.fingerprint) {
		again() // the operator has not published its new one yet
		return
	}
	var names []string
	for _, f := range dropped {
		names = append(names, f.String())
	}
	cm.Data = map[string]string{bundleKey: encodeCertificates(kept)}
	cm.Annotations = map[string]string{bundle.AllowanceAnnotation: strings.Join(names, ",")}
	if err := w.api.put(userAdmin, guardedID(), cm); err != nil {
		if !apierrors.IsInvalid(err) {
			again()
		}
		return
	}
	for _, f := range dropped {
		w.view.banned[f] = &since{}
		w.stats[brokenGlass]++
	}
	w.seeSource()
	if n%2 == 0 {
		w.after(7*day, w.removeAllowance)
	}
}

// removeAllowance takes the annotation off when all is long done.
func (w *world) removeAllowance() {
	was := w.api.configMap(guardedNamespace, guardedName)
	if was == nil {
		return
	}
	cm := was.DeepCopy()
	delete(cm.Annotations, bundle.AllowanceAnnotation)
	_ = w.api.put(userAdmin, guardedID(), cm) // it may stay
}

// mistake has an administrator edit the bundle wrongly. What the gate lets through, or is not there to refuse, is put
// right by hand after a while, as far as it is wrong. It says whether there was anything to edit.
func (w *world) mistake(n int) bool {
	was := w.api.configMap(guardedNamespace, guardedName)
	if was == nil {
		return false
	}
	wrong := mistakes()[n%len(mistakes())]
	if wrong.edit == nil {
		if w.api.remove(userAdmin, guardedID()) == nil {
			w.after(w.between("mistake/repair", 10*time.Minute, 3*day), func() { w.repair(was) })
		}
		return true
	}
	cm := was.DeepCopy()
	cm.Data = map[string]string{bundleKey: string(wrong.edit(w, was.Data[bundleKey]))}
	gated := w.gate.installed
	if err := w.api.put(userAdmin, guardedID(), cm); err == nil && !gated {
		w.after(w.between("mistake/repair", 10*time.Minute, 3*day), func() { w.repair(was) })
	}
	return true
}

// repair puts back what was there, and keeps what came since.
func (w *world) repair(was *corev1.ConfigMap) {
	is := w.api.configMap(guardedNamespace, guardedName)
	before, _ := bundle.Parse([]byte(was.Data[bundleKey]))
	cm := was.DeepCopy()
	cm.ResourceVersion = ""
	union := before
	if is != nil {
		now, _ := bundle.Parse([]byte(is.Data[bundleKey]))
		union = bundle.Merge(before, now)
		cm = is.DeepCopy()
	}
	kept := &bundle.Bundle{}
	for _, c := range union.Certificates {
		if c.X509.IsCA && c.X509.NotAfter.After(w.now) && w.view.banned[c.Fingerprint] == nil {
			kept.Certificates = append(kept.Certificates, c)
		}
	}
	cm.Data = map[string]string{bundleKey: string(kept.Canonical())}
	if err := w.api.put(userAdmin, guardedID(), cm); err != nil {
		w.after(w.between("mistake/again", time.Minute, 3*time.Hour), func() { w.repair(was) })
	}
}

// metadata edits an annotation.
func (w *world) metadata() {
	was := w.api.configMap(guardedNamespace, guardedName)
	if was == nil {
		return
	}
	cm := was.DeepCopy()
	if cm.Annotations == nil {
		cm.Annotations = map[string]string{}
	}
	cm.Annotations["openshift.io/owning-component"] = fmt.Sprint(w.now.Unix())
	_ = w.api.put(userOperator, guardedID(), cm) // the API server may be away
}

// breakManaged breaks the ConfigMap with all CAs for a while.
func (w *world) breakManaged(a act) {
	w.operator.managedOff = w.now.Add(a.d)
	if a.what == managedGone {
		_ = w.api.remove(userSystem, managedID()) // it may not be there
	} else {
		cm := &corev1.ConfigMap{Data: map[string]string{bundleKey: "-----BEGIN CERTIFICATE-----\nMIIB"}}
		_ = w.api.put(userSystem, managedID(), cm) // the API server may be away
	}
	w.after(a.d+time.Second, w.operator.manage)
}
