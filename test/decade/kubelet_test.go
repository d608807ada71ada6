package decade

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"time"

	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"kubelet-ca-courier/bundle"
)

// kubelet is what a kubelet knows about its client CAs.
type kubelet struct {
	running    bool
	loaded     []byte
	generation int
	content    dynamiccertificates.CAContentProvider
	loadedAt   time.Time
	// advertised is what it tells clients, fixed at start before 1.36.
	advertised [][]byte
	// until is how long the last answer about a client certificate holds.
	answer struct {
		accepted   bool
		generation int
		client     *x509.Certificate
		until      time.Time
	}
}

// start starts the kubelet, which dies at once of a file that it cannot load.
func (m *machine) start() {
	m.kubelet.running = true
	if !m.load() {
		m.kubelet.running = false
		m.w.tell("%s: the kubelet cannot start", m.name)
		if !m.foreign.on {
			m.w.violate(kubeletCannotStart, "%s: the kubelet cannot start with its client-CA file", m.name)
		}
		m.w.after(day, m.repair)
		return
	}
	m.kubelet.advertised = m.subjects()
}

// repair is what an administrator does, by hand, for a node whose kubelet cannot start with what somebody wrote.
func (m *machine) repair() {
	managed := m.w.api.configMap(managedNamespace, managedName)
	if !m.exists || m.kubelet.running {
		return
	}
	if !m.w.powered.on || managed == nil || managed.Data[bundleKey] == "" {
		m.w.after(day, m.repair)
		return
	}
	m.disk.files[destination] = []byte(managed.Data[bundleKey])
	m.start()
	m.setReady(true)
}

// load is the kubelet's look at its file, with the kubelet's own loader: a file that it cannot load changes nothing.
func (m *machine) load() bool {
	text := m.disk.files[destination]
	if m.kubelet.content != nil && string(text) == string(m.kubelet.loaded) {
		return true
	}
	content, err := dynamiccertificates.NewStaticCAContent("client-ca", text)
	if err != nil {
		return false
	}
	m.kubelet.content, m.kubelet.loaded, m.kubelet.loadedAt = content, text, m.w.now
	m.kubelet.generation++
	return true
}

func (m *machine) subjects() [][]byte {
	held, _ := bundle.Parse(m.kubelet.loaded)
	var subjects [][]byte
	for _, c := range held.Certificates {
		subjects = append(subjects, c.X509.RawSubject)
	}
	return subjects
}

// accepts asks the kubelet's own authenticator whether it accepts the API server now.
func (m *machine) accepts(certificate *x509.Certificate) bool {
	k, now := &m.kubelet, m.w.now.Add(m.off)
	if k.answer.client == certificate && k.answer.generation == k.generation && now.Before(k.answer.until) {
		return k.answer.accepted
	}
	authenticator := requestx509.NewDynamic(func() (x509.VerifyOptions, bool) {
		options, found := k.content.VerifyOptions()
		options.CurrentTime = now
		return options, found
	}, requestx509.CommonNameUserConversion)
	request := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}
	_, accepted, _ := authenticator.AuthenticateRequest(request.WithContext(context.Background()))
	k.answer.accepted, k.answer.generation, k.answer.client = accepted, k.generation, certificate
	k.answer.until = now.Add(time.Hour)
	if accepted { // it holds until a certificate's time is over
		k.answer.until = certificate.NotAfter
		held, _ := bundle.Parse(k.loaded)
		for _, c := range held.Certificates {
			if end := c.X509.NotAfter; end.After(now) && end.Before(k.answer.until) {
				k.answer.until = end
			}
		}
	}
	return accepted
}
