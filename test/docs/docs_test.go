// Package docs_test runs every command of the documents, in their order, on a local cluster of real parts: a new admin's path,
// tried from the documents alone. Commands are those in fenced blocks marked sh.
package docs_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/test/need"
)

// patience bounds the whole; nothing takes that long unless it is broken.
const patience = 40 * time.Minute

// windowsNodes are named as in the documents.
var windowsNodes = []string{"win-1", "win-2", "win-3"}

// TestEveryCommandOfTheDocumentsWorks goes through installing, on each distribution, and then through operating.
func TestEveryCommandOfTheDocumentsWorks(t *testing.T) {
	need.ControlPlane(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a := newAdmin(ctx, t)

	a.follow("install/README.md")
	before := a.files("k", "kubelet-ca.crt")
	stop := a.serviceCA()
	a.follow("install/openshift.md")
	stop()
	a.same(before, a.files("k", "kubelet-ca.crt"))

	a.seedFile(`etc/kubernetes/pki/ca.crt`)
	a.follow("install/kubeadm.md")
	a.seedFile(`k/ca.crt`)
	a.follow("install/aks.md")

	a.sh("kubectl apply -k manifests/overlays/openshift")
	defer a.serviceCA()()
	a.sh("kubectl rollout status -n kubelet-ca-courier-system deployment/courier --timeout=5m")
	a.sh("kubectl courier status --watch --timeout=5m")
	a.follow("security.md")
	a.rotate()
	a.follow("operate.md")
}

// admin follows documents, with what a new admin has: a clone, kubectl, the plugin and a cluster.
type admin struct {
	*lab.Lab
	t     *testing.T
	ctx   context.Context //nolint:containedctx // the life of one test
	clone string
	bin   string
}

// newAdmin brings up a cluster with cert-manager and what OpenShift brings along.
func newAdmin(ctx context.Context, t *testing.T) *admin {
	t.Helper()
	dir := t.TempDir()
	l, err := lab.Open(ctx, filepath.Join(dir, "cluster"), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	a := &admin{Lab: l, t: t, ctx: ctx, clone: filepath.Join(dir, "clone"), bin: filepath.Join(dir, "bin")}
	t.Cleanup(func() {
		if _, err := l.Cluster(context.WithoutCancel(ctx), "down"); err != nil {
			t.Errorf("ending the cluster: %v", err)
		}
	})
	a.must(l.Cluster(ctx, "up"))
	if err := l.Furnish(ctx, windowsNodes...); err != nil {
		t.Fatal(err)
	}
	if err := l.SeedOpenShift(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	a.linkClone()
	return a
}

// linkClone makes a directory that looks like a clone, so that what commands write does not end up in the real one.
func (a *admin) linkClone() {
	a.t.Helper()
	for _, dir := range []string{a.clone, a.bin} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			a.t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(a.Root)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(a.Root, e.Name()), filepath.Join(a.clone, e.Name())); err != nil {
			a.t.Fatal(err)
		}
	}
}

// must ends the test on an error.
func (a *admin) must(out string, err error) string {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

// block matches a fenced block of commands.
var block = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// follow runs the commands of a document.
func (a *admin) follow(document string) {
	a.t.Helper()
	text, err := os.ReadFile(filepath.Join(a.Root, "docs", document))
	if err != nil {
		a.t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(text), -1)
	if len(blocks) == 0 {
		a.t.Fatalf("%s has no commands", document)
	}
	for i, b := range blocks {
		a.t.Logf("%s, block %d of %d", document, i+1, len(blocks))
		a.sh(b[1])
	}
}

// sh runs commands as an admin's shell does, and stops at the first that fails; one that is to fail begins with "!".
func (a *admin) sh(script string) string {
	a.t.Helper()
	for _, line := range strings.Split(script, "\n") {
		if rest, ok := strings.CutPrefix(line, "! "); ok {
			script = strings.Replace(script, line, "if "+rest+"; then echo 'this should have failed'; exit 1; fi", 1)
		}
	}
	cmd := exec.CommandContext(a.ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = a.clone
	cmd.Env = append(os.Environ(),
		"KUBECONFIG="+a.Kubeconfig(), "GOBIN="+a.bin, "PATH="+a.bin+":"+filepath.Join(a.Dir, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		a.t.Fatalf("%v\n$ %s\n%s\nthe cluster's logs are in %s/logs", err, script, out, a.Dir)
	}
	return string(out)
}

// rotate publishes a new signer, as the operator does, and leaves the files that operate.md speaks of: bundles to write by
// hand, and the certificate of a signer that has to go.
func (a *admin) rotate() {
	a.t.Helper()
	if err := a.Signer(a.ctx, "second"); err != nil {
		a.t.Fatal(err)
	}
	both := a.must(a.Cluster(a.ctx, "signer", "bundle", "first", "second"))
	a.must(a.PatchGuarded(a.ctx, both))
	a.write("bundle.pem", both)
	a.must(a.Cluster(a.ctx, "resign-client", "second"))
	a.write("compromised.pem", a.must(a.Cluster(a.ctx, "signer", "bundle", "first")))
	a.write("new.pem", a.must(a.Cluster(a.ctx, "signer", "bundle", "second")))
}

// write writes a file into the clone.
func (a *admin) write(name, content string) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.clone, name), []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// files returns the content of a file on every node.
func (a *admin) files(path ...string) map[string][]byte {
	a.t.Helper()
	all := map[string][]byte{}
	for _, node := range windowsNodes {
		data, err := os.ReadFile(a.Disk(node, path...))
		if err != nil {
			a.t.Fatal(err)
		}
		all[node] = data
	}
	return all
}

// same checks that nothing of the nodes' files went with what was removed.
func (a *admin) same(before, after map[string][]byte) {
	a.t.Helper()
	for node := range before {
		if !bytes.Equal(before[node], after[node]) {
			a.t.Errorf("the file on %s has changed", node)
		}
	}
	for _, namespace := range []string{lab.ManagerNamespace, lab.JobsNamespace} {
		if _, err := a.Kubectl(a.ctx, "get", "namespace", namespace); err == nil {
			a.t.Errorf("the namespace %s is still there", namespace)
		}
	}
	left := a.sh(`kubectl get clusterrole,clusterrolebinding,role,rolebinding,validatingwebhookconfiguration,validatingadmissionpolicy,validatingadmissionpolicybinding -A -l app.kubernetes.io/name=kubelet-ca-courier -o name`)
	if strings.TrimSpace(left) != "" {
		a.t.Errorf("left behind:\n%s", left)
	}
}

// seedFile puts the cluster's client CA where kubeadm and others write it when a node joins.
func (a *admin) seedFile(path string) {
	a.t.Helper()
	ca := a.sh(`kubectl get configmap -n kube-system extension-apiserver-authentication -o jsonpath='{.data.client-ca-file}'`)
	for _, node := range windowsNodes {
		file := a.Disk(node, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			a.t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(ca), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// serviceCA stands in for OpenShift's service CA: it makes the serving certificate that the Service's annotation asks for, and
// puts the CA where the webhook's annotation asks for it, each time they are new. The returned function ends it.
func (a *admin) serviceCA() func() {
	ctx, cancel := context.WithCancel(a.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := a.serveOnce(ctx); err != nil && ctx.Err() == nil {
				a.t.Logf("service CA: %v", err) // what it looks for is not there yet
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// serveOnce does what the service CA does, once.
func (a *admin) serveOnce(ctx context.Context) error {
	secret, err := a.Kubectl(ctx, "get", "service", "courier-webhook", "-n", lab.ManagerNamespace, "--ignore-not-found",
		`-o=jsonpath={.metadata.annotations.service\.beta\.openshift\.io/serving-cert-secret-name}`)
	if err != nil || secret == "" {
		return err
	}
	if _, err := a.Kubectl(ctx, "get", "secret", secret, "-n", lab.ManagerNamespace); err != nil {
		certificate, key := a.servingCertificate()
		if _, err := a.Kubectl(ctx, "create", "secret", "tls", secret, "-n", lab.ManagerNamespace,
			"--cert="+certificate, "--key="+key); err != nil {
			return err
		}
	}
	bundles, err := a.Kubectl(ctx, "get", "validatingwebhookconfiguration", "kubelet-ca-courier",
		"-o=jsonpath={.webhooks[*].clientConfig.caBundle}")
	if err != nil || bundles != "" {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(a.bin, "service-ca.crt"))
	if err != nil {
		return err
	}
	var patch []string
	for i := range 2 {
		patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/webhooks/%d/clientConfig/caBundle","value":%q}`, i,
			base64.StdEncoding.EncodeToString(ca)))
	}
	_, err = a.Kubectl(ctx, "patch", "validatingwebhookconfiguration", "kubelet-ca-courier", "--type=json",
		"-p", "["+strings.Join(patch, ",")+"]")
	return err
}

// servingCertificate makes a CA and a serving certificate for the Service, once, and returns the certificate's files.
func (a *admin) servingCertificate() (certificate, key string) {
	certificate, key = filepath.Join(a.bin, "tls.crt"), filepath.Join(a.bin, "tls.key")
	if _, err := os.Stat(certificate); err == nil {
		return certificate, key
	}
	writeServingCertificate(a.t, a.bin, "courier-webhook."+lab.ManagerNamespace+".svc")
	return certificate, key
}
