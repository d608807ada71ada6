// Package docs_test is a new admin's path, tried from the documents alone on a local cluster of real parts: it runs every
// command of the documents in their order, installs each overlay and takes it out again, breaks nodes and finds out why, and
// changes to another build and back. Commands are those in fenced blocks marked sh.
package docs_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// TestEveryCommandOfTheDocumentsWorks goes through installing, on each distribution, and then through operating. Each part
// begins where the one before ended. At the end no command is left that an admin finds in any document, in a block or in a
// sentence.
func TestEveryCommandOfTheDocumentsWorks(t *testing.T) {
	a := newAdmin(t, lab.Plan{Windows: []string{"win-1", "win-2", "win-3.example.com"}, Signers: []string{"first"}})
	for _, part := range []struct {
		name string
		run  func(*admin)
	}{
		{"install/README.md", (*admin).preparesToInstall},
		{"install/kubeadm.md", func(a *admin) {
			a.installs(kubeadm)
			a.followRest(func(document string) bool { return strings.Contains(document, "Certificate") }) // it is about cert-manager
			a.takesOut(kubeadm)
		}},
		{"install/aks.md", func(a *admin) {
			a.installs(aks)
			a.takesOut(aks)
		}},
		{"install/openshift.md", func(inner *admin) {
			t.Cleanup(a.serviceCA()) // goes on after this part
			inner.installs(openshift)
		}},
		{"security.md", func(a *admin) { a.follow("security.md") }},
		{"a broken node", (*admin).breaksNodesAndFindsOutWhy},
		{"all other documents", func(a *admin) {
			must := labtest.Must[string](a.t)
			a.write(a.clone, "old.pem", must(a.Bundle(a.t.Context(), "first")))
			a.write(a.clone, "new.pem", must(a.Guarded(a.t.Context())))
			a.followRest(func(document string) bool {
				return document != "docs/operate.md" && document != "docs/install/openshift.md"
			})
		}},
		{"operate.md", (*admin).operates},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(a.in(t)) }) {
			return
		}
	}
	for _, c := range a.notRun() {
		t.Errorf("%s has a command that was not run: %s", c.document, c.text)
	}
}

// preparesToInstall pushes the images and builds the plugin.
func (a *admin) preparesToInstall() {
	a.t.Helper()
	a.follow("install/README.md")
	if proposed := a.sh("kubectl __complete courier st"); !strings.Contains(proposed, "status\tShow") {
		a.t.Errorf("kubectl courier st<TAB> gives %q", proposed)
	}
	a.sh("make install.yaml") // CONTRIBUTING.md
	if files, _ := filepath.Glob(filepath.Join(a.clone, "install", "*.yaml")); len(files) != 3 {
		a.t.Errorf("make install.yaml gave %q, want a file for each of three overlays", files)
	}
	for _, image := range []string{"manager", "node"} {
		ref := labtest.Must[name.Reference](a.t)(name.ParseReference(a.registry + "/kubelet-ca-courier/" + image + ":v1"))
		if _, err := remote.Get(ref); err != nil {
			a.t.Errorf("the image was not pushed: %v", err)
		}
	}
}

// operates goes through operate.md, with the operators of the cluster doing their part.
func (a *admin) operates() {
	a.t.Helper()
	a.rotate()
	a.followSections("operate.md", "Rotation day", "A stuck node", "Change the settings")
	a.breaksTheGlass()
	a.followSections("operate.md", "Disaster recovery", "Upgrade, and back")
	a.followRest(func(string) bool { return true })
	a.takesOut(openshift)
}

// rotate publishes a new signer, as the operator does, and leaves the files that operate.md speaks of: bundles to write by
// hand, and the certificate of a signer that has to go.
func (a *admin) rotate() {
	a.t.Helper()
	ctx, must := a.t.Context(), labtest.Must[string](a.t)
	last := must(a.Bundle(ctx, "last"))
	first := must(a.Cluster(ctx, "signer", "bundle", "first"))
	all := must(a.Guarded(ctx)) + last
	must(a.PatchGuarded(ctx, all))
	a.write(filepath.Join(a.Dir, "nodes", lab.LinuxNode), "kubelet-ca.crt", all) // OpenShift's operators see to Linux nodes
	must(a.Cluster(ctx, "resign-client", "last"))
	a.write(a.clone, "bundle.pem", all)
	a.write(a.clone, "compromised.pem", first)
	a.write(a.clone, "new.pem", strings.ReplaceAll(all, first, ""))
}

// breaksTheGlass follows operate.md while every source drops the compromised signer, as it says that they have to, and checks
// that the signer has left every node.
func (a *admin) breaksTheGlass() {
	a.t.Helper()
	ctx, must := a.t.Context(), labtest.Must[string](a.t)
	last := must(a.Bundle(ctx, "last"))
	patch := labtest.Must[[]byte](a.t)(json.Marshal(map[string]any{"data": map[string]string{lab.GuardedKey: last}}))
	must(a.Kubectl(ctx, "patch", "configmap", "-n", lab.ManagedNamespace, lab.ManagedName, "--type=merge", "-p", string(patch)))
	compromised, _ := bundle.Parse([]byte(must(a.Bundle(ctx, "first"))))
	for _, node := range a.windows {
		if len(bundle.Missing(compromised, a.held(node))) > 0 {
			a.t.Errorf("%s lost a CA that is still valid although nobody has broken the glass", node)
		}
	}
	a.followSections("operate.md", "Break-glass: a signer is compromised")
	wanted, _ := bundle.Parse([]byte(last))
	for _, node := range a.windows {
		held := a.held(node)
		if len(bundle.Missing(compromised, held)) != len(compromised.Certificates) || len(bundle.Missing(wanted, held)) > 0 {
			a.t.Errorf("after break-glass %s holds %d certificates, the compromised one among them or the new one not", node, len(held.Certificates))
		}
	}
}

// held is what the kubelet's file on a node holds.
func (a *admin) held(node string) *bundle.Bundle {
	a.t.Helper()
	held, findings := bundle.Parse(labtest.Must[[]byte](a.t)(os.ReadFile(a.File(node))))
	if len(findings) > 0 {
		a.t.Errorf("the file of %s: %v", node, findings)
	}
	return held
}
