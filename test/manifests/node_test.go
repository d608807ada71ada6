package manifests_test

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

// two nodes: the attacker has the credentials of one of them.
const (
	stolen = "win-1"
	other  = "win-2"
)

// nodeAttempts say what a node's credentials are good for. What is allowed concerns that node alone.
var nodeAttempts = []attempt{
	{"reads the snapshot that its own pod mounts", get(dispatcher.JobsNamespace, "kubelet-ca-0123456789abcdef"), true},
	{"reads another ConfigMap of the Jobs' namespace", get(dispatcher.JobsNamespace, "kubelet-ca-another"), false},
	{"reads the guarded ConfigMap", get("openshift-kube-apiserver-operator", "kube-apiserver-to-kubelet-client-ca"), false},
	{"reads the settings", get(dispatcher.ManagerNamespace, dispatcher.ConfigName), false},
	{"reads the webhook's key", func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		return as.Get(t.Context(), client.ObjectKey{Namespace: dispatcher.ManagerNamespace, Name: "courier-webhook-tls"}, &corev1.Secret{})
	}, false},
	{"writes a snapshot", func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		return as.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.JobsNamespace, Name: "kubelet-ca-mine"}})
	}, false},
	{"makes a Job", func(t *testing.T, as client.Client, job *batchv1.Job) error {
		mine := job.DeepCopy()
		mine.Name, mine.ResourceVersion = "mine", ""
		return as.Create(t.Context(), mine)
	}, false},
	{"deletes a Job", func(t *testing.T, as client.Client, job *batchv1.Job) error {
		return as.Delete(t.Context(), job)
	}, false},
	{"makes a mirror pod on itself", func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		return as.Create(t.Context(), mirrorPod(t, as, stolen))
	}, false},
	{"reports that its own pod has succeeded", report(stolen), true},
	{"reports that another node's pod has succeeded", report(other), false},
	{"deletes another node's pod", func(t *testing.T, as client.Client, job *batchv1.Job) error {
		return as.Delete(t.Context(), boundPod(job, other), client.GracePeriodSeconds(0))
	}, false},
	{"reports another boot of its own", boot(stolen), true},
	{"reports another boot of another node", boot(other), false},
	{"labels another node", func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		return as.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other}}, labelPatch())
	}, false},
	{"takes courier's lease", func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		return as.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.ManagerNamespace, Name: "courier"}})
	}, false},
	{"gets a token of courier's", token(dispatcher.ManagerNamespace, "courier"), false},
}

// TestANodesCredentialsReachNoOtherNode tries what the holder of one node's credentials could, on an API server with the
// Node authorizer and the NodeRestriction admission plugin.
func TestANodesCredentialsReachNoOtherNode(t *testing.T) {
	s := startWith(t, "openshift")
	s.awaitPolicies(t)
	job := realJob(t, s.objects, func(*dispatcher.Config) {})
	must := func(err error) {
		t.Helper()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	manager := s.as(t, managerAccount, "")
	for _, name := range []string{"kubelet-ca-0123456789abcdef", "kubelet-ca-another"} {
		must(manager.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.JobsNamespace, Name: name}}))
	}
	must(manager.Create(t.Context(), job))
	for _, name := range []string{stolen, other} {
		must(s.admin.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "windows"}}}))
		must(s.as(t, jobController, "").Create(t.Context(), boundPod(job, name)))
	}

	attacker := s.as(t, "system:node:"+stolen, "system:nodes")
	for _, attempt := range nodeAttempts {
		t.Run(attempt.name, func(t *testing.T) {
			if attempt.allowed { // the Node authorizer learns of pods a moment later
				eventually(t, func() error { return attempt.try(t, attacker, job) })
				return
			}
			if err := attempt.try(t, attacker, job); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("%v, want forbidden", err)
			}
		})
	}
}

func get(namespace, name string) func(*testing.T, client.Client, *batchv1.Job) error {
	return func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		return as.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &corev1.ConfigMap{})
	}
}

// boundPod is the Job's pod as it runs on the node.
func boundPod(job *batchv1.Job, node string) *corev1.Pod {
	pod := podOf(job)
	pod.Name, pod.Spec.NodeName = "on-"+node, node
	return pod
}

// mirrorPod is a pod by which a kubelet shows what it runs of its own accord.
func mirrorPod(t *testing.T, as client.Client, node string) *corev1.Pod {
	t.Helper()
	self := &corev1.Node{}
	if err := as.Get(t.Context(), client.ObjectKey{Name: node}, self); err != nil {
		t.Fatal(err)
	}
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: dispatcher.JobsNamespace, Name: "mirror",
			Annotations:     map[string]string{corev1.MirrorPodAnnotationKey: "mirror"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: self.UID, Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "a", Image: "evil/image"}}},
	}
}

func report(node string) func(*testing.T, client.Client, *batchv1.Job) error {
	return func(t *testing.T, as client.Client, job *batchv1.Job) error {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Succeeded"}}`))
		return as.Status().Patch(t.Context(), boundPod(job, node), patch)
	}
}

func boot(node string) func(*testing.T, client.Client, *batchv1.Job) error {
	return func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"nodeInfo":{"bootID":"another"}}}`))
		return as.Status().Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch)
	}
}

func labelPatch() client.Patch {
	return client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"kubernetes.io/os":"linux"}}}`))
}

func token(namespace, account string) func(*testing.T, client.Client, *batchv1.Job) error {
	return func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
		return as.SubResource("token").Create(t.Context(), owner, &authenticationv1.TokenRequest{})
	}
}
