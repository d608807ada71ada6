package decade

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/bundle"
)

// operator owns the guarded ConfigMap: a model of library-go's pkg/operator/certrotation and of what OpenShift's
// kube-apiserver operator sets in it. Its days are those of the history, which are shorter in short-rotation testing.
type operator struct {
	w   *world
	off time.Duration

	signer *authority
	born   time.Time
	forced bool

	// seen is the guarded ConfigMap in the operator's cache.
	seen *corev1.ConfigMap

	// client is the API server's client certificate, and issuer what signed it; presented is the one that the API server
	// has loaded.
	client, presented   *x509.Certificate
	issuer, presentedBy *authority
	others              []*authority // what the managed ConfigMap holds besides
	csrSigner           *authority
	managedOff          time.Time // until when nothing keeps the managed ConfigMap
	next                int       // tells planned syncs apart: only the latest counts
	retries             int
}

func newOperator(w *world) *operator {
	o := &operator{w: w, off: w.history.operatorClock}
	o.others = append(o.others, w.mint.authority("admin-kubeconfig-signer", w.now.Add(-day), w.now.AddDate(20, 0, 0)))
	w.api.watch(o.see)
	o.sync(userOperator)
	return o
}

// see keeps the cache, late, and looks at what others wrote.
func (o *operator) see(k id, _, _ client.Object) {
	if k != guardedID() {
		return
	}
	o.w.after(o.w.between("operator/watch", 0, 3*time.Second), func() {
		o.seen = o.w.api.configMap(guardedNamespace, guardedName)
	})
	o.plan(o.w.between("operator/watched", 4*time.Second, 30*time.Second), userOperator)
	o.w.after(o.w.between("operator/managed", 5*time.Second, 5*time.Minute), o.manage)
}

// plan has the operator look again.
func (o *operator) plan(d time.Duration, user string) {
	o.next++
	mine := o.next
	o.w.after(d, func() {
		if o.next == mine {
			o.sync(user)
		}
	})
}

// sync is one pass: signer, bundle, client certificate. What fails is tried again.
func (o *operator) sync(user string) {
	if !o.w.powered.on {
		return // the return of power plans the next
	}
	if err := o.rotate(user); err != nil {
		o.retries++
		o.w.tell("the operator: %v", err)
		o.plan(o.w.between("operator/retry", 5*time.Second, time.Minute)<<min(o.retries, 4), userOperator)
		return
	}
	o.retries = 0
	o.plan(max(o.due().Sub(o.clock()), 0)+o.w.between("operator/sync", time.Second, 10*time.Minute), userOperator)
}

func (o *operator) clock() time.Time { return o.w.now.Add(o.off) }

// days is a number of days of rotation.
func (o *operator) days(n float64) time.Duration {
	return time.Duration(n * float64(o.w.history.rotationDay))
}

func (o *operator) rotate(user string) error {
	if !o.w.api.up.on {
		return fmt.Errorf("the API server is away")
	}
	now := o.clock()
	if o.signer == nil || o.forced || !now.Before(o.born.Add(o.days(o.w.history.refresh))) || now.After(o.signer.certificate.NotAfter) {
		o.born, o.forced = now.Add(-time.Second), false
		o.signer = o.w.mint.authority(fmt.Sprintf("openshift-kube-apiserver-operator_kube-apiserver-to-kubelet-signer@%d", now.Unix()),
			o.born, o.born.Add(o.days(365)))
		o.w.stats[rotations]++
		o.w.tell("the operator has a new signer, %s", short(o.signer.fingerprint))
	}
	trusted, err := o.publish(user, now)
	if err != nil {
		return err
	}
	if reason := o.resign(trusted, now); reason != "" {
		o.client, o.issuer = o.w.mint.client(o.signer, now.Add(-time.Second), now.Add(o.days(30))), o.signer
		o.w.stats[clientCertificates]++
		client, issuer := o.client, o.issuer
		o.w.tell("the API server's client certificate is signed by %s: %s", short(issuer.fingerprint), reason)
		o.w.after(o.w.between("operator/load", time.Minute, 10*time.Minute), func() { o.presented, o.presentedBy = client, issuer })
	}
	return nil
}

// publish puts the signer into the bundle (cabundle.go, manageCABundleConfigMap).
func (o *operator) publish(user string, now time.Time) ([]*x509.Certificate, error) {
	cm := o.seen.DeepCopy()
	if cm == nil {
		cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: guardedNamespace, Name: guardedName}}
		if o.w.api.configMap(guardedNamespace, guardedName) != nil {
			return nil, fmt.Errorf("the cache lags behind")
		}
	}
	var had []*x509.Certificate
	if text := cm.Data[bundleKey]; text != "" {
		var err error
		if had, err = cert.ParseCertsPEM([]byte(text)); err != nil {
			return nil, fmt.Errorf("the bundle does not parse: %w", err)
		}
	}
	trusted := combine(now, append([]*x509.Certificate{o.signer.certificate}, had...))
	text := encodeCertificates(trusted)
	if cm.Data[bundleKey] == text {
		return trusted, nil
	}
	cm.Data = map[string]string{bundleKey: text}
	cm.BinaryData = nil
	if err := o.w.api.put(user, guardedID(), cm); err != nil {
		return nil, fmt.Errorf("write the bundle: %w", err)
	}
	o.seen = o.w.api.configMap(guardedNamespace, guardedName)
	return trusted, nil
}

// combine drops what has expired, de-duplicates and sorts by DER.
func combine(now time.Time, certificates []*x509.Certificate) []*x509.Certificate {
	kept := slices.DeleteFunc(slices.Clone(certificates), func(c *x509.Certificate) bool { return !c.NotAfter.After(now) })
	slices.SortFunc(kept, func(x, y *x509.Certificate) int { return bytes.Compare(x.Raw, y.Raw) })
	return slices.CompactFunc(kept, func(x, y *x509.Certificate) bool { return x.Equal(y) })
}

func encodeCertificates(certificates []*x509.Certificate) string {
	var text bytes.Buffer
	for _, c := range certificates {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a buffer takes everything
	}
	return text.String()
}

// resign says why the client certificate has to be signed anew (target.go, needNewTargetCertKeyPair).
func (o *operator) resign(trusted []*x509.Certificate, now time.Time) string {
	if o.client == nil {
		return "there is none"
	}
	from, until := o.client.NotBefore, o.client.NotAfter
	switch {
	case now.After(until):
		return "it has expired"
	case now.After(until.Add(-until.Sub(from) / 5)):
		return "past its latest possible time"
	case now.After(from.Add(o.days(15))) && now.After(o.born.Add(o.days(1.5))):
		return "past its refresh time"
	}
	issuer := o.issuer.certificate.Subject.CommonName
	if !slices.ContainsFunc(trusted, func(c *x509.Certificate) bool { return c.Subject.CommonName == issuer }) {
		return "its issuer is not in the bundle"
	}
	return ""
}

// due is when the operator has something to do next, by its own clock.
func (o *operator) due() time.Time {
	next := o.clock().Add(3 * day)
	sooner := func(t time.Time) {
		if t.After(o.clock()) && t.Before(next) {
			next = t
		}
	}
	sooner(o.born.Add(o.days(o.w.history.refresh)))
	sooner(o.born.Add(o.days(1.5)))
	sooner(o.client.NotBefore.Add(o.days(15)))
	sooner(o.client.NotBefore.Add(o.days(24)))
	if o.seen != nil {
		had, _ := cert.ParseCertsPEM([]byte(o.seen.Data[bundleKey]))
		for _, c := range had {
			sooner(c.NotAfter)
		}
	}
	return next
}

// manage writes the ConfigMap with all CAs of the cluster's kubelets: the guarded ones, the CA of administrators and one
// for certificate signing requests, which lives 60 days and is replaced after 30.
func (o *operator) manage() {
	if !o.w.powered.on || !o.w.api.up.on || o.w.now.Before(o.managedOff) {
		return
	}
	now := o.clock()
	if o.w.history.csrSigner && (o.csrSigner == nil || now.After(o.csrSigner.certificate.NotBefore.Add(o.days(30)))) {
		o.csrSigner = o.w.mint.authority(fmt.Sprintf("kube-csr-signer_@%d", now.Unix()), now.Add(-time.Second), now.Add(o.days(60)))
		o.others = append(o.others, o.csrSigner)
		o.w.after(o.days(30)+time.Hour, o.manage)
	}
	guarded := o.w.api.configMap(guardedNamespace, guardedName)
	if guarded == nil {
		return
	}
	all, err := cert.ParseCertsPEM([]byte(guarded.Data[bundleKey]))
	if err != nil {
		return
	}
	for _, other := range o.others {
		all = append(all, other.certificate)
	}
	text := encodeCertificates(combine(now, all))
	cm := &corev1.ConfigMap{Data: map[string]string{bundleKey: text}}
	cm.Namespace, cm.Name = managedNamespace, managedName
	if was := o.w.api.configMap(managedNamespace, managedName); was == nil || was.Data[bundleKey] != text {
		if err := o.w.api.put(userSystem, managedID(), cm); err != nil {
			o.w.after(time.Minute, o.manage)
		}
	}
}

// short is enough of a fingerprint to tell certificates apart.
func short(f bundle.Fingerprint) string { return f.String()[:8] }
