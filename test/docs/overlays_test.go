package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// overlay is an overlay as it ships, and what its cluster has.
type overlay struct {
	name                 string
	namespace, configMap string
	key                  string
	file                 string // the kubelet's client-CA file, below drive C
	seed                 bool   // the file has to be put there first, as joining the cluster does
}

var (
	openshift = overlay{
		name: "openshift", file: "k/kubelet-ca.crt",
		namespace: lab.GuardedNamespace, configMap: lab.GuardedName, key: lab.GuardedKey,
	}
	kubeadm = overlay{
		name: "kubeadm", file: "etc/kubernetes/pki/ca.crt", seed: true,
		namespace: "kube-system", configMap: "extension-apiserver-authentication", key: "client-ca-file",
	}
	aks = overlay{
		name: "aks", file: "k/ca.crt", seed: true,
		namespace: "kube-system", configMap: "extension-apiserver-authentication", key: "client-ca-file",
	}
)

// takeOut is the last command of every overlay's document, and of operate.md.
const takeOut = "kubectl delete -k \"${COURIER:?}\"\n"

// installs follows the overlay's document up to its last command, and has one signer delivered.
func (a *admin) installs(o overlay) {
	a.t.Helper()
	if there := a.ours(); len(there) > 0 {
		a.t.Fatalf("before it is installed there is\n%s", strings.Join(there, "\n"))
	}
	if o.seed {
		a.seedFile(o)
	}
	a.kustomization = "manifests/overlays/" + o.name // as it is
	a.followAllBut(takeOut, "install/"+o.name+".md")
	a.delivers(o)
	if there := a.ours(); len(there) < 20 {
		a.t.Errorf("while it is installed, only this is seen of it:\n%s", strings.Join(there, "\n"))
	}
}

// takesOut runs the last command of the overlay's document, and looks for what that leaves.
func (a *admin) takesOut(o overlay) {
	a.t.Helper()
	before := a.directory(o)
	a.sh(takeOut)
	if left := a.ours(); len(left) > 0 {
		a.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	if diff := cmp.Diff(before, a.directory(o)); diff != "" {
		a.t.Errorf("the nodes' files (-before +after):\n%s", diff)
	}
}

// seedFile puts the cluster's client CA where it is written when a node joins.
func (a *admin) seedFile(o overlay) {
	a.t.Helper()
	for _, node := range a.windows {
		file := a.Disk(node, o.file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			a.t.Fatal(err)
		}
		a.write(filepath.Dir(file), filepath.Base(file), a.source(o))
	}
}

// source is what the overlay's guarded ConfigMap holds.
func (a *admin) source(o overlay) string {
	a.t.Helper()
	return labtest.Must[string](a.t)(a.Kubectl(a.t.Context(), "get", "configmap", "-n", o.namespace, o.configMap,
		"-o", "jsonpath={.data."+strings.ReplaceAll(o.key, ".", `\.`)+"}"))
}

// delivers adds a signer to the guarded ConfigMap and checks that it reaches the overlay's file on every node, by Jobs that
// courier's own account made.
func (a *admin) delivers(o overlay) {
	a.t.Helper()
	ctx, must := a.t.Context(), labtest.Must[string](a.t)
	signer := must(a.Bundle(ctx, "signer-of-"+o.name))
	patch := labtest.Must[[]byte](a.t)(json.Marshal(map[string]any{"data": map[string]string{o.key: a.source(o) + signer}}))
	since := labtest.Must[int64](a.t)(a.AuditLength())
	must(a.Kubectl(ctx, "patch", "configmap", "-n", o.namespace, o.configMap, "--type=merge", "-p", string(patch)))
	a.sh("kubectl courier status --watch --timeout=5m")

	wanted, _ := bundle.Parse([]byte(signer))
	for _, node := range a.windows {
		data := labtest.Must[[]byte](a.t)(os.ReadFile(a.Disk(node, o.file)))
		held, findings := bundle.Parse(data)
		if len(findings) > 0 || len(bundle.Missing(wanted, held)) > 0 {
			a.t.Errorf("the file of %s lacks the signer: %v\n%s", node, findings, data)
		}
	}
	made := map[string]string{}
	for _, event := range labtest.Must[[]auditv1.Event](a.t)(a.Audit(since)) {
		if event.Verb == "create" && event.ObjectRef.Resource == "jobs" && event.ResponseStatus.Code < 300 {
			made[event.ObjectRef.Name] = event.User.Username
		}
	}
	want := map[string]string{}
	for _, node := range a.windows {
		want[a.job(node)] = "system:serviceaccount:" + lab.ManagerNamespace + ":courier"
	}
	if diff := cmp.Diff(want, made); diff != "" {
		a.t.Errorf("Jobs and who made them (-want +got):\n%s", diff)
	}
}

// entry is what of a file must not change.
type entry struct {
	Content  string
	Modified string
	Mode     fs.FileMode
	Inode    uint64
}

// directory looks at all that is in the directory of the overlay's file, on every node.
func (a *admin) directory(o overlay) map[string]entry {
	a.t.Helper()
	all := map[string]entry{}
	for _, node := range a.windows {
		dir := filepath.Dir(a.Disk(node, o.file))
		for _, e := range labtest.Must[[]os.DirEntry](a.t)(os.ReadDir(dir)) {
			info := labtest.Must[fs.FileInfo](a.t)(e.Info())
			found := entry{Modified: info.ModTime().UTC().String(), Mode: info.Mode(), Inode: info.Sys().(*syscall.Stat_t).Ino}
			if info.Mode().IsRegular() {
				found.Content = string(labtest.Must[[]byte](a.t)(os.ReadFile(filepath.Join(dir, e.Name()))))
			}
			all[node+"/"+e.Name()] = found
		}
		if _, there := all[node+"/"+filepath.Base(o.file)]; !there {
			a.t.Errorf("%s has no %s", node, o.file)
		}
	}
	return all
}

// ours lists all objects of every kind that the API server has which are ours or speak of what is ours: by name, label,
// reference, or however else. Events alone may stay.
func (a *admin) ours() []string {
	a.t.Helper()
	client, config, err := a.Client()
	if err != nil {
		a.t.Fatal(err)
	}
	config.WarningHandler = rest.NoWarnings{} // of kinds that are out of use
	objects := labtest.Must[*dynamic.DynamicClient](a.t)(dynamic.NewForConfig(config))
	var found []string
	for _, list := range labtest.Must[[]*metav1.APIResourceList](a.t)(client.Discovery().ServerPreferredResources()) {
		version := labtest.Must[schema.GroupVersion](a.t)(schema.ParseGroupVersion(list.GroupVersion))
		for _, kind := range list.APIResources {
			if kind.Kind != "Event" && slices.Contains(kind.Verbs, "list") {
				found = append(found, a.oursOf(objects.Resource(version.WithResource(kind.Name)), kind)...)
			}
		}
	}
	return found
}

// oursOf lists those of a kind.
func (a *admin) oursOf(objects dynamic.ResourceInterface, kind metav1.APIResource) []string {
	a.t.Helper()
	var found []string
	list, err := objects.List(context.WithoutCancel(a.t.Context()), metav1.ListOptions{})
	if err != nil {
		a.t.Fatalf("listing %s: %v", kind.Name, err)
	}
	for _, o := range list.Items {
		o.SetManagedFields(nil)
		text := string(labtest.Must[[]byte](a.t)(o.MarshalJSON()))
		if strings.Contains(text, "kubelet-ca-courier") || strings.Contains(o.GetName(), "courier") {
			found = append(found, fmt.Sprintf("%s %s/%s", kind.Kind, o.GetNamespace(), o.GetName()))
		}
	}
	return found
}
