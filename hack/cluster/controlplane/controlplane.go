// Package controlplane knows how etcd, kube-apiserver, kube-controller-manager and kube-scheduler are started on one
// machine without privileges: their certificates, kubeconfigs and flags.
package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/pki"
	"kubelet-ca-courier/hack/cluster/process"
)

// KubeletClientUser is the user name in the certificate that kube-apiserver shows to kubelets.
const KubeletClientUser = "kube-apiserver-kubelet-client"

// authorities are the CAs of a cluster by file name. Those that kube-apiserver trusts for different ends are different.
var authorities = map[string]string{
	"ca":             "kubernetes-ca",
	"etcd-ca":        "etcd-ca",
	"front-proxy-ca": "front-proxy-ca",
	"kubelet-ca":     "kubelet-serving-ca",
}

// WritePKI makes the cluster's authorities and certificates, the key of service-account tokens, the kubeconfigs and the
// audit policy.
func WritePKI(c layout.Cluster) error {
	cas := map[string]*pki.Authority{}
	for file, name := range authorities {
		ca, err := pki.EnsureAuthority(c.PKI(file), name)
		if err != nil {
			return err
		}
		cas[file] = ca
	}
	network := layout.Network{Slot: c.Slot}
	local := []string{network.ControlPlane(), "127.0.0.1", "localhost"}
	api := append([]string{network.KubernetesServiceIP(), "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local"}, local...)
	for _, issue := range []struct {
		ca, file string
		request  pki.Request
	}{
		{"etcd-ca", "etcd", pki.Request{CommonName: "etcd", Hosts: local}},
		{"etcd-ca", "etcd-client", pki.Request{CommonName: "kube-apiserver"}},
		{"ca", "apiserver", pki.Request{CommonName: "kube-apiserver", Hosts: api}},
		{"ca", "service-account", pki.Request{CommonName: "service-accounts"}}, // its key signs the tokens
		{"ca", "controller-manager", pki.Request{CommonName: "kube-controller-manager", Hosts: local}},
		{"ca", "scheduler", pki.Request{CommonName: "kube-scheduler", Hosts: local}},
		{"front-proxy-ca", "front-proxy-client", pki.Request{CommonName: "front-proxy-client"}},
	} {
		if err := cas[issue.ca].Issue(c.PKI(issue.file), issue.request); err != nil {
			return err
		}
	}
	for path, request := range map[string]pki.Request{
		c.Kubeconfig():                         {CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}},
		c.PKI("controller-manager.kubeconfig"): {CommonName: "system:kube-controller-manager"},
		c.PKI("scheduler.kubeconfig"):          {CommonName: "system:kube-scheduler"},
	} {
		if err := WriteKubeconfig(c, path, request); err != nil {
			return err
		}
	}
	return layout.WriteFile(c.PKI("audit-policy.yaml"), []byte(auditPolicy), 0o644)
}

// auditPolicy records who did what to which object, once per request and without bodies: enough to count writes.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: None
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: Metadata
`

// WriteKubeconfig issues a client certificate and writes a kubeconfig that uses it.
func WriteKubeconfig(c layout.Cluster, path string, r pki.Request) error {
	return WriteKubeconfigFor(c, path, r, c.APIServer)
}

// WriteKubeconfigFor is WriteKubeconfig for a client that reaches kube-apiserver at another URL.
func WriteKubeconfigFor(c layout.Cluster, path string, r pki.Request, server string) error {
	ca, err := pki.LoadAuthority(c.PKI("ca"))
	if err != nil {
		return err
	}
	name := strings.ReplaceAll(r.CommonName, ":", "-")
	if err := ca.Issue(c.PKI(name), r); err != nil {
		return err
	}
	return layout.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: local
  cluster: {server: %q, certificate-authority: %q, tls-server-name: kubernetes}
users:
- name: user
  user: {client-certificate: %q, client-key: %q}
contexts:
- name: local
  context: {cluster: local, user: user}
current-context: local
`, server, c.PKI("ca.crt"), c.PKI(name+".crt"), c.PKI(name+".key")), 0o600)
}

// Specs are the control plane's processes in the order in which they are started.
func Specs(c layout.Cluster) []process.Spec {
	return []process.Spec{etcd(c), apiServer(c), controllerManager(c), scheduler(c)}
}

func etcd(c layout.Cluster) process.Spec {
	address := layout.Network{Slot: c.Slot}.ControlPlane()
	client := fmt.Sprintf("https://%s:%d", address, c.Ports["etcd"])
	peer := fmt.Sprintf("http://%s:%d", address, c.Ports["etcd-peer"])
	return process.Spec{Name: "etcd", Args: []string{c.Bin("etcd"),
		"--data-dir=" + c.Path("etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--cert-file=" + c.PKI("etcd.crt"), "--key-file=" + c.PKI("etcd.key"),
		"--client-cert-auth", "--trusted-ca-file=" + c.PKI("etcd-ca.crt"),
		"--unsafe-no-fsync", "--log-level=warn",
	}}
}

func apiServer(c layout.Cluster) process.Spec {
	network := layout.Network{Slot: c.Slot}
	return process.Spec{Name: "kube-apiserver", Args: []string{c.Bin("kube-apiserver"),
		fmt.Sprintf("--etcd-servers=https://%s:%d", network.ControlPlane(), c.Ports["etcd"]),
		"--etcd-cafile=" + c.PKI("etcd-ca.crt"),
		"--etcd-certfile=" + c.PKI("etcd-client.crt"), "--etcd-keyfile=" + c.PKI("etcd-client.key"),
		"--bind-address=" + network.ControlPlane(), "--advertise-address=" + network.ControlPlane(),
		fmt.Sprintf("--secure-port=%d", c.Ports["kube-apiserver"]),
		"--endpoint-reconciler-type=none", // it refuses to publish a loopback address
		"--service-cluster-ip-range=" + network.ServiceCIDR(),
		"--tls-cert-file=" + c.PKI("apiserver.crt"), "--tls-private-key-file=" + c.PKI("apiserver.key"),
		"--client-ca-file=" + c.PKI("ca.crt"),
		"--kubelet-certificate-authority=" + c.PKI("kubelet-ca.crt"),
		"--kubelet-client-certificate=" + c.PKI("kubelet-client.crt"),
		"--kubelet-client-key=" + c.PKI("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.PKI("service-account.key"),
		"--service-account-signing-key-file=" + c.PKI("service-account.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--requestheader-client-ca-file=" + c.PKI("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.PKI("front-proxy-client.crt"),
		"--proxy-client-key-file=" + c.PKI("front-proxy-client.key"),
		"--allow-privileged=true",
		"--audit-policy-file=" + c.PKI("audit-policy.yaml"), "--audit-log-path=" + c.Path("logs", "audit.log"),
	}}
}

func controllerManager(c layout.Cluster) process.Spec {
	return process.Spec{Name: "kube-controller-manager", Args: append([]string{c.Bin("kube-controller-manager"),
		"--use-service-account-credentials",
		// Endpoints and EndpointSlices may not hold loopback addresses.
		"--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller",
		"--root-ca-file=" + c.PKI("ca.crt"),
		"--service-account-private-key-file=" + c.PKI("service-account.key"),
		"--cluster-signing-cert-file=" + c.PKI("ca.crt"), "--cluster-signing-key-file=" + c.PKI("ca.key"),
	}, component(c, "controller-manager")...)}
}

func scheduler(c layout.Cluster) process.Spec {
	return process.Spec{Name: "kube-scheduler", Args: append([]string{c.Bin("kube-scheduler")}, component(c, "scheduler")...)}
}

// component are the flags that kube-controller-manager and kube-scheduler share. Without a second instance, an election
// would only delay the restart after a kill.
func component(c layout.Cluster, name string) []string {
	kubeconfig := "=" + c.PKI(name+".kubeconfig")
	return []string{
		"--kubeconfig" + kubeconfig, "--authentication-kubeconfig" + kubeconfig, "--authorization-kubeconfig" + kubeconfig,
		"--bind-address=" + layout.Network{Slot: c.Slot}.ControlPlane(), fmt.Sprintf("--secure-port=%d", c.Ports["kube-"+name]),
		"--tls-cert-file=" + c.PKI(name+".crt"), "--tls-private-key-file=" + c.PKI(name+".key"),
		"--leader-elect=false",
	}
}

// Resign makes kube-apiserver's client certificate for kubelets anew, signed by the named signer.
func Resign(c layout.Cluster, signer string) error {
	ca, err := LoadSigner(c, signer)
	if err != nil {
		return err
	}
	return ca.Issue(c.PKI("kubelet-client"), pki.Request{CommonName: KubeletClientUser})
}

// SignerPath is where the signer's certificate and key are, without the ending.
func SignerPath(c layout.Cluster, name string) string { return c.Path("signers", name) }

// LoadSigner loads a signer of kube-apiserver's client certificate.
func LoadSigner(c layout.Cluster, name string) (*pki.Authority, error) {
	ca, err := pki.LoadAuthority(SignerPath(c, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no signer called %q", name)
	}
	return ca, err
}

// Signers lists the signers by name.
func Signers(c layout.Cluster) ([]string, error) {
	paths, err := filepath.Glob(c.Path("signers", "*.crt"))
	for i, path := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(path), ".crt")
	}
	return paths, err
}
