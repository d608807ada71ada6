package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// What the demo's overlay installs, and what it guards.
const (
	// Overlay is OpenShift's overlay as it ships, with cert-manager in the place of the service CA.
	Overlay = "hack/demo/manifests"
	// ManagerNamespace is where courier runs.
	ManagerNamespace = "kubelet-ca-courier-system"
	// JobsNamespace is where an admin watches the Jobs.
	JobsNamespace = "kubelet-ca-courier"
	// GuardedNamespace, GuardedName and GuardedKey name the kubelet's client CAs on OpenShift.
	GuardedNamespace = "openshift-kube-apiserver-operator"
	GuardedName      = "kube-apiserver-to-kubelet-client-ca"
	GuardedKey       = "ca-bundle.crt"
	// ManagedNamespace and ManagedName name the full set that kubelets of Linux nodes trust there, under the same key.
	ManagedNamespace = "openshift-config-managed"
	ManagedName      = "kube-apiserver-client-ca"
)

// LinuxNode is the simulated node that runs the shipped Deployment's pods.
const LinuxNode = "linux-1"

// Furnish adds cert-manager, the Linux node and Windows nodes to a cluster that is up. What is there already stays. The last
// Windows node has a container runtime of the older kind, which puts volumes under CONTAINER_SANDBOX_MOUNT_POINT.
func (l *Lab) Furnish(ctx context.Context, windows ...string) error {
	if _, err := l.Cluster(ctx, "cert-manager"); err != nil {
		return err
	}
	last := len(windows) - 1
	for _, args := range [][]string{
		{LinuxNode, "--os", "linux"},
		windows[:last],
		{windows[last], "--mount-style", "sandbox"},
	} {
		if len(args) == 0 {
			continue
		}
		if _, err := l.Cluster(ctx, append([]string{"add-node"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// SeedOpenShift makes the namespaces and ConfigMaps that OpenShift's operators own, holding the CAs of the signers. A
// guarded ConfigMap that is there already stays as it is.
func (l *Lab) SeedOpenShift(ctx context.Context, signers ...string) error {
	bundle, err := l.Cluster(ctx, append([]string{"signer", "bundle"}, signers...)...)
	if err != nil {
		return err
	}
	objects := []any{
		namespace(GuardedNamespace), namespace(ManagedNamespace),
		configMap(ManagedNamespace, ManagedName, bundle),
	}
	if _, err := l.Kubectl(ctx, "get", "configmap", GuardedName, "-n", GuardedNamespace); err != nil {
		objects = append(objects, configMap(GuardedNamespace, GuardedName, bundle))
	}
	list, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return err
	}
	_, err = l.KubectlWith(ctx, strings.NewReader(string(list)), "apply", "--server-side", "-f", "-")
	return err
}

// object is a Kubernetes object as JSON.
type object map[string]any

func namespace(name string) object {
	return object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name}}
}

func configMap(namespace, name, bundle string) object {
	return object{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": object{"namespace": namespace, "name": name},
		"data":     object{GuardedKey: bundle},
	}
}

// Install applies the overlay as it is and waits until that is done.
func (l *Lab) Install(ctx context.Context) error {
	if _, err := l.Kubectl(ctx, "apply", "--server-side", "-k", Overlay); err != nil {
		return err
	}
	return l.AwaitInstalled(ctx)
}

// AwaitInstalled waits until the Deployment is as it was applied, and available, and the webhook has its CA.
func (l *Lab) AwaitInstalled(ctx context.Context) error {
	if _, err := l.Kubectl(ctx, "rollout", "status", "deployment/courier", "-n", ManagerNamespace, "--timeout=120s"); err != nil {
		return err
	}
	_, err := l.Kubectl(ctx, "wait", "validatingwebhookconfiguration/kubelet-ca-courier", "--timeout=60s",
		"--for=jsonpath={.webhooks[0].clientConfig.caBundle}")
	return err
}

// Guarded returns the bundle that the guarded ConfigMap holds.
func (l *Lab) Guarded(ctx context.Context) (string, error) {
	return l.Kubectl(ctx, "get", "configmap", GuardedName, "-n", GuardedNamespace, "-o", `jsonpath={.data.ca-bundle\.crt}`)
}

// PatchGuarded writes the bundle into the guarded ConfigMap, as the administrator or, with --as among the arguments, as
// somebody else, and returns what kubectl said.
func (l *Lab) PatchGuarded(ctx context.Context, bundle string, args ...string) (string, error) {
	patch, err := json.Marshal(object{"data": object{GuardedKey: bundle}})
	if err != nil {
		return "", fmt.Errorf("encode the patch: %w", err)
	}
	return l.Kubectl(ctx, append([]string{"patch", "configmap", GuardedName, "-n", GuardedNamespace,
		"--type=merge", "-p", string(patch)}, args...)...)
}
