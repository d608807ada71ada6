// Package bundle says what a CA bundle for kubelets is, and whether one may replace another.
//
// A bundle is the text of a kubelet's client-CA file: PEM certificates of the CAs whose client certificates the kubelet
// accepts. [Parse] reads one strictly, [Review] judges a change from one to the next, and [Bundle.Canonical] is the one
// form in which a bundle is delivered to nodes.
//
// The package is pure: no I/O, no clock of its own, no Kubernetes, the standard library only. Admission, delivery, the
// landing on the node and the command line all ask it, so that they can never disagree.
//
// # Where the rules come from
//
// The kubelet's parser is k8s.io/client-go/util/cert.ParseCertsPEM: it loads CERTIFICATE blocks without headers, skips
// every other block without a word, and refuses the whole file for one bad DER. Below it, encoding/pem skips without a
// word whatever it cannot frame. Each such silence loses a CA, so each is a finding here.
//
// The kubelet's judge is k8s.io/apiserver/pkg/authentication/request/x509, which asks crypto/x509.Certificate.Verify with
// the extended key usage clientAuth. "Usable" in this package means what that judge would accept now. Both are the
// oracles of the tests.
package bundle
