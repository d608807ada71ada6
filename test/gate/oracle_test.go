package gate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
)

// authenticates asks the kubelet's own x509 authenticator, fed by the kubelet's own loader of the file, whether it accepts
// the chain that a client shows. It is the oracle.
func authenticates(t testing.TB, file []byte, now time.Time, chain ...*x509.Certificate) bool {
	t.Helper()
	content, err := dynamiccertificates.NewStaticCAContent("client-ca", file)
	if err != nil {
		t.Fatalf("the kubelet refuses the file: %v", err)
	}
	authenticator := requestx509.NewDynamic(func() (x509.VerifyOptions, bool) {
		options, found := content.VerifyOptions()
		options.CurrentTime = now
		return options, found
	}, requestx509.CommonNameUserConversion)
	request := (&http.Request{TLS: &tls.ConnectionState{PeerCertificates: chain}}).WithContext(t.Context())
	_, accepted, _ := authenticator.AuthenticateRequest(request)
	return accepted
}

// weakRSA makes an RSA key that is too short for Go to make or to use unasked.
func weakRSA(t *testing.T, bits int) crypto.Signer {
	t.Helper()
	t.Setenv("GODEBUG", "rsa1024min=0")
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issuer is a key with a client certificate that it signed in the name of the oracle's CAs.
type issuer struct {
	name   string
	key    crypto.Signer
	client *x509.Certificate
}

// issuers are one for each kind and size of key.
func issuers(t *testing.T) []issuer {
	t.Helper()
	all := []issuer{{name: "RSA 512", key: weakRSA(t, 512)}, {name: "RSA 768", key: weakRSA(t, 768)}}
	for _, bits := range []int{1024, 2048, 3072} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, issuer{name: fmt.Sprint("RSA ", bits), key: key})
	}
	for _, curve := range []elliptic.Curve{elliptic.P224(), elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, issuer{name: curve.Params().Name, key: key})
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, issuer{name: "Ed25519", key: key})
	leafKey := bundletest.NewKey(t)
	for i, one := range all {
		ca := bundletest.NewCA(t, bundletest.Spec{Name: "oracle", Key: one.key})
		all[i].client = ca.Issue(t, clientTemplate(), leafKey)
	}
	t.Setenv("GODEBUG", "")
	return all
}

// clientTemplate is the API server's client certificate.
func clientTemplate() x509.Certificate {
	return x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}
}

func TestUsableAgreesWithTheKubeletsAuthenticator(t *testing.T) {
	constraints, usages := basicConstraintsVariants(t), keyUsageVariants(t)
	extended, others, times := extendedKeyUsageVariants(t), otherExtensionVariants(t), timeVariants()
	total, usable := 0, 0
	for _, issuer := range issuers(t) {
		for _, basic := range constraints {
			for _, usage := range usages {
				for _, eku := range extended {
					for _, other := range others {
						// Every combination of extensions, with the version and the times in turn.
						total++
						within := times[total%len(times)]
						version := []int{3, 3, 3, 1}[total%4]
						der := bundletest.Spec{
							Name: "oracle", Key: issuer.key, Version: version, From: within.is[0], Until: within.is[1],
							Extensions: append(slices.Concat(basic.is, usage.is, eku.is, other.is), []pkix.Extension{}...),
						}.DER(t)
						text := bundletest.Block(der)
						parsed, findings := bundle.Parse(text)
						if len(findings) > 0 {
							t.Fatalf("%v", findings)
						}
						why := parsed.Certificates[0].Unusable(bundletest.At())
						accepted := authenticates(t, text, bundletest.At(), issuer.client)
						if accepted {
							usable++
						}
						if accepted != (len(why) == 0) {
							t.Errorf("%s, version %d, %s, %s, %s, %s, %s: the kubelet accepts: %v; the gate: %v",
								issuer.name, version, basic.name, usage.name, eku.name, other.name, within.name, accepted, why)
						}
					}
				}
			}
		}
	}
	t.Logf("%d combinations, %d of them usable", total, usable)
	if usable < 100 || total-usable < 100 {
		t.Errorf("%d of %d combinations are usable: the test does not tell both answers apart", usable, total)
	}
}

// probe is something that a client may show, on behalf of the CA, at some time.
type probe struct {
	at    time.Time
	chain []*x509.Certificate
}

// probes are client certificates of the CA: with all kinds of names, below intermediates, at several times.
func probes(t *testing.T, ca bundletest.CA, times []time.Time) []probe {
	t.Helper()
	key := bundletest.NewKey(t)
	var chains [][]*x509.Certificate
	direct := func(names func(*x509.Certificate)) {
		template := clientTemplate()
		names(&template)
		chains = append(chains, []*x509.Certificate{ca.Issue(t, template, key)})
	}
	direct(func(*x509.Certificate) {})
	for _, name := range []string{"example.com", "a.example.com", "bad.example.com", "x.bad.example.com", "example.org", "a.example.org", "other.net", "other.com", "*.example.com"} {
		direct(func(c *x509.Certificate) { c.DNSNames = []string{name} })
		if !strings.HasPrefix(name, "*") {
			direct(func(c *x509.Certificate) { c.EmailAddresses = []string{"u@" + name} })
			direct(func(c *x509.Certificate) { c.EmailAddresses = []string{"v@" + name} })
			direct(func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "https", Host: name}} })
		}
	}
	for _, ip := range []string{"10.0.0.1", "10.1.0.1", "11.0.0.1", "fd00::1", "fd01::1"} {
		direct(func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.ParseIP(ip)} })
	}
	direct(func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "urn", Opaque: "x"}} })
	upper, chain := ca, []*x509.Certificate{}
	for i := range 2 {
		lower := bundletest.CA{Key: bundletest.NewKey(t)}
		lower.Certificate = upper.Issue(t, x509.Certificate{
			Subject: pkix.Name{CommonName: fmt.Sprint("intermediate ", i)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}, lower.Key)
		chain = append([]*x509.Certificate{lower.Certificate}, chain...)
		chains = append(chains, append([]*x509.Certificate{lower.Issue(t, clientTemplate(), key)}, chain...))
		upper = lower
	}
	var all []probe
	for _, at := range times {
		for _, chain := range chains {
			all = append(all, probe{at, chain})
		}
	}
	return all
}

func TestCoversAgreesWithTheKubeletsAuthenticator(t *testing.T) {
	at, key := bundletest.At(), bundletest.NewKey(t)
	issuer := bundletest.NewCA(t, bundletest.Spec{Name: "oracle", Key: key})
	ends := []time.Time{at.Add(10 * bundletest.Day), at.Add(20 * bundletest.Day), at.Add(4 * time.Minute)}
	asked := probes(t, issuer, append([]time.Time{at}, ends[:2]...))
	names := nameConstraintVariants(t)

	type candidate struct {
		about   string
		text    []byte
		accepts []bool
	}
	var candidates []candidate
	for i, nameConstraint := range names {
		for _, pathLength := range []int{-1, 0, 1} {
			for j, eku := range extendedKeyUsageVariants(t) {
				// All pairs of name constraints and path lengths; the rest in turn.
				if j != 0 && (i+j+pathLength)%4 != 0 {
					continue
				}
				from := at.Add(-time.Hour)
				if (i+j)%11 == 10 {
					from = at.Add(time.Hour)
				}
				end := ends[(i+2*j+pathLength+1)%len(ends)]
				extensions := slices.Concat([]pkix.Extension{bundletest.BasicConstraints(t, true, pathLength)}, eku.is, nameConstraint.is)
				c := candidate{
					about: fmt.Sprintf("path length %d, %s, %s, from %s to %s", pathLength, eku.name, nameConstraint.name, from, end),
					text:  bundletest.Block(bundletest.Spec{Name: "oracle", Key: key, From: from, Until: end, Extensions: extensions}.DER(t)),
				}
				for _, p := range asked {
					c.accepts = append(c.accepts, authenticates(t, c.text, p.at, p.chain...))
				}
				candidates = append(candidates, c)
			}
		}
	}
	bystander := bundletest.Named(t, "bystander").PEM
	random := mathrand.New(mathrand.NewPCG(1, 2))
	covered, refused := 0, 0
	for range 20_000 {
		gone, heir := candidates[random.IntN(len(candidates))], candidates[random.IntN(len(candidates))]
		lost := false
		for i := range asked {
			lost = lost || gone.accepts[i] && !heir.accepts[i]
		}
		// What ends within the clock skew, or is not usable now, may go.
		parsed, _ := bundle.Parse(gone.text)
		matters := gone.accepts[0] && parsed.Certificates[0].X509.NotAfter.After(at.Add(bundle.ClockSkew))
		want := matters && lost
		v := bundle.Review(slices.Concat(gone.text, bystander), slices.Concat(heir.text, bystander), at, nil)
		got := slices.Contains(codes(v.Reasons), bundle.DropsValidCA)
		if got != want {
			t.Errorf("gone: %s\nheir: %s\nthe kubelet loses trust: %v; the gate: %v", gone.about, heir.about, want, v.Reasons)
		}
		if got {
			refused++
		} else if matters {
			covered++
		}
	}
	t.Logf("%d candidates, %d pairs covered, %d refused", len(candidates), covered, refused)
	if covered < 100 || refused < 100 {
		t.Error("the test does not tell both answers apart")
	}
}

func TestEveryPKITSCertificateGetsTheOraclesAnswer(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(goroot(t), "src/crypto/x509/testdata/nist-pkits/certs/*.crt"))
	if err != nil || len(files) < 400 {
		t.Fatalf("%d PKITS certificates in GOROOT: %v", len(files), err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signers := 0
	for _, file := range files {
		der, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		v := bundle.Review(nil, bundletest.Block(der), bundletest.At(), nil)
		if v.Allowed == (len(v.Reasons) > 0) {
			t.Errorf("%s has no verdict: %+v", filepath.Base(file), v)
		}
		parsed, findings := bundle.Parse(bundletest.Block(der))
		original, err := x509.ParseCertificate(der)
		if (err == nil) != (len(findings) == 0) {
			t.Errorf("%s: crypto/x509 says %v, the gate %v", filepath.Base(file), err, findings)
		}
		if err != nil {
			continue
		}
		at := original.NotBefore.Add(time.Hour)
		issues := len(parsed.Certificates[0].Unusable(at)) == 0
		if accepted := oracleOfRekeyed(t, original, key, at); accepted != issues {
			t.Errorf("%s: the kubelet accepts what it issues: %v; the gate: %v", filepath.Base(file), accepted, parsed.Certificates[0].Unusable(at))
		}
		if issues {
			signers++
		}
	}
	t.Logf("%d certificates, %d of them can issue client certificates", len(files), signers)
}

// oracleOfRekeyed asks the oracle about a certificate whose key nobody has: about its like with a key of the test's own. A
// key that is not RSA is of no use to Go's verifier, and there are no others in PKITS but DSA.
func oracleOfRekeyed(t *testing.T, original *x509.Certificate, key *rsa.PrivateKey, at time.Time) bool {
	t.Helper()
	spec := bundletest.Spec{
		RawSubject: original.RawSubject, Version: original.Version, From: original.NotBefore, Until: original.NotAfter,
		Key: key, Extensions: append([]pkix.Extension{}, original.Extensions...),
	}
	if _, isRSA := original.PublicKey.(*rsa.PublicKey); !isRSA {
		spec.PublicKey = original.RawSubjectPublicKeyInfo
	}
	text := bundletest.Block(spec.DER(t))
	issuer := bundletest.NewCA(t, bundletest.Spec{RawSubject: original.RawSubject, Key: key})
	return authenticates(t, text, at, issuer.Issue(t, clientTemplate(), key))
}

// goroot is where the Go distribution that runs the tests is.
func goroot(t *testing.T) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("ask go for its root: %v", err)
	}
	return strings.TrimSpace(string(root))
}

// codes are the codes of findings.
func codes(findings []bundle.Finding) []bundle.Code {
	all := make([]bundle.Code, 0, len(findings))
	for _, f := range findings {
		all = append(all, f.Code)
	}
	return all
}
