// Package docs_test is a new admin's path, tried from the documents alone on a local cluster of real parts: it runs every
// command of the documents in their order, installs each overlay and takes it out again, breaks nodes and finds out why, and
// changes to another build and back. Commands are those in fenced blocks marked sh.
package docs_test

import (
	"path/filepath"
	"strings"
	"testing"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// TestEveryCommandOfTheDocumentsWorks goes through installing, on each distribution, and then through operating. Each part
// begins where the one before ended.
func TestEveryCommandOfTheDocumentsWorks(t *testing.T) {
	a := newAdmin(t, lab.Plan{Windows: []string{"win-1", "win-2", "win-3"}, Signers: []string{"first"}})
	for _, part := range []struct {
		name string
		run  func(*admin)
	}{
		{"install/README.md", func(a *admin) { a.follow("install/README.md") }},
		{"install/kubeadm.md", func(a *admin) {
			a.installs(kubeadm)
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
		{"operate.md", func(a *admin) {
			a.rotate()
			a.followAllBut(openshift.takeOut(), "operate.md")
			a.takesOut(openshift)
		}},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(a.in(t)) }) {
			return
		}
	}
}

// rotate publishes a new signer, as the operator does, and leaves the files that operate.md speaks of: bundles to write by
// hand, and the certificate of a signer that has to go.
func (a *admin) rotate() {
	a.t.Helper()
	ctx, must := a.t.Context(), labtest.Must[string](a.t)
	must(a.Bundle(ctx, "last"))
	first := must(a.Cluster(ctx, "signer", "bundle", "first"))
	all := must(a.Guarded(ctx)) + must(a.Cluster(ctx, "signer", "bundle", "last"))
	must(a.PatchGuarded(ctx, all))
	a.write(filepath.Join(a.Dir, "nodes", lab.LinuxNode), "kubelet-ca.crt", all) // OpenShift's operators see to Linux nodes
	must(a.Cluster(ctx, "resign-client", "last"))
	a.write(a.clone, "bundle.pem", all)
	a.write(a.clone, "compromised.pem", first)
	a.write(a.clone, "new.pem", strings.ReplaceAll(all, first, ""))
}
