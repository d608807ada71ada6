package manifests_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"kubelet-ca-courier/test/need"
)

// Accounts that the tables speak as.
const (
	managerAccount = "system:serviceaccount:kubelet-ca-courier-system:courier"
	nodeAccount    = "system:serviceaccount:kubelet-ca-courier:courier-node"
	jobController  = "system:serviceaccount:kube-system:job-controller"
)

// apiServer is a real API server with etcd, on which an overlay was applied as it is.
type apiServer struct {
	config  *rest.Config
	admin   client.Client
	objects []*unstructured.Unstructured
}

// startWith starts an API server and applies the overlay. Kinds that the platform brings along (cert-manager's) are left
// out here; the local cluster's tests have them. Nodes have the rights that they have on a cluster.
func startWith(t *testing.T, overlayName string) *apiServer {
	t.Helper()
	log.SetLogger(logr.Discard())
	env := &envtest.Environment{BinaryAssetsDirectory: need.ControlPlane(t), ControlPlaneStartTimeout: 3 * time.Minute}
	env.ControlPlane.GetAPIServer().Configure().
		Set("authorization-mode", "Node,RBAC").Append("enable-admission-plugins", "NodeRestriction")
	config, err := env.Start()
	if err != nil {
		t.Fatalf("starting the API server: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	s := &apiServer{config: config, objects: overlay(t, overlayName)}
	s.admin = s.as(t, "", "")
	s.applyAll(t)
	return s
}

// applyAll creates the namespaces that a platform has and then every object of the overlay, refusing unknown fields.
func (s *apiServer) applyAll(t *testing.T) {
	t.Helper()
	for _, u := range s.objects {
		if strings.HasPrefix(u.GetNamespace(), "openshift-") {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: u.GetNamespace()}}
			if err := s.admin.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
	}
	for _, u := range s.objects {
		if u.GroupVersionKind().Group == "cert-manager.io" {
			continue
		}
		if err := s.admin.Create(t.Context(), u.DeepCopy(), client.FieldValidation("Strict")); err != nil {
			t.Fatalf("creating %s %s/%s: %v", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
	}
}

// as returns a client that speaks as a user in the given group; with no user it is the administrator.
func (s *apiServer) as(t *testing.T, user, group string) client.Client {
	t.Helper()
	config := rest.CopyConfig(s.config)
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groupsOf(user, group)}
	}
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// groupsOf returns the groups that the API server itself gives to a service account
// (k8s.io/apiserver pkg/authentication/serviceaccount, MakeGroupNames), and a further one.
func groupsOf(user, group string) []string {
	groups := []string{"system:authenticated"}
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		namespace, _, _ := strings.Cut(rest, ":")
		groups = append(groups, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	if group != "" {
		groups = append(groups, group)
	}
	return groups
}

// TestEveryOverlayIsAcceptedByTheAPIServer applies each overlay to an API server of its own, and checks that the manager's pod
// passes the restricted Pod Security level of its namespace.
func TestEveryOverlayIsAcceptedByTheAPIServer(t *testing.T) {
	for _, name := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			s := startWith(t, name)
			if err := s.admin.Create(t.Context(), managerPod(t, s.objects), client.DryRunAll); err != nil {
				t.Errorf("the manager's pod is refused: %v", err)
			}
			root := managerPod(t, s.objects)
			root.Spec.SecurityContext.RunAsNonRoot = nil
			if err := s.admin.Create(t.Context(), root, client.DryRunAll); !apierrors.IsForbidden(err) {
				t.Errorf("a pod that may run as root in the manager's namespace: %v, want forbidden", err)
			}
		})
	}
}

// managerPod returns the pod that the Deployment would make.
func managerPod(t *testing.T, objects []*unstructured.Unstructured) *corev1.Pod {
	t.Helper()
	deployment := findDeployment(t, objects)
	pod := &corev1.Pod{
		ObjectMeta: deployment.Spec.Template.ObjectMeta,
		Spec:       deployment.Spec.Template.Spec,
	}
	pod.Namespace, pod.Name = deployment.Namespace, "courier-0"
	return pod
}

// mustDeny checks that a request was refused by the policy that says so.
func mustDeny(err error, because string) error {
	if err == nil {
		return fmt.Errorf("it was let through, want a refusal because %q", because)
	}
	if !strings.Contains(err.Error(), because) {
		return fmt.Errorf("it was refused for another reason: %w; want %q", err, because)
	}
	return nil
}

// patience is how long a policy may take to come into effect.
const patience = time.Minute

// eventually repeats a check until it passes: policies take effect a moment after they are created.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: %v", patience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
