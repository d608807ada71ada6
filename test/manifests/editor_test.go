package manifests_test

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

// guardedNamespace and guardedName are the OpenShift overlay's.
const (
	guardedNamespace = "openshift-kube-apiserver-operator"
	guardedName      = "kube-apiserver-to-kubelet-client-ca"
)

// attempt is what somebody with stolen or given rights may try.
type attempt struct {
	name    string
	try     func(t *testing.T, as client.Client, job *batchv1.Job) error
	allowed bool
}

// editorAttempts are what a holder of the role edit in one namespace tries, by namespace: docs/security.md says the outcomes.
var editorAttempts = map[string][]attempt{
	dispatcher.ManagerNamespace: {
		{"chooses the image that runs on every node", patch(settingsObject(), `{"data":{"config.yaml":"image: evil/image"}}`), true},
		{"gets a token of courier's", token(dispatcher.ManagerNamespace, "courier"), true},
		{"creates a Job", create(func(job *batchv1.Job) client.Object { return job }), false},
		{"takes the gate away", remove(&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "kubelet-ca-courier"}}), false},
		{"takes the policies away", remove(&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "kubelet-ca-courier-jobs"}}), false},
		{"gives courier another role", create(func(*batchv1.Job) client.Object { return roleBinding(dispatcher.ManagerNamespace) }), false},
		{"edits the guarded ConfigMap", patch(guardedObject(), `{"data":{"ca-bundle.crt":"x"}}`), false},
	},
	dispatcher.JobsNamespace: {
		{"deletes a Job", remove(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.JobsNamespace, Name: "win-1"}}), true},
		{"deletes a snapshot", remove(snapshotObject()), true},
		{"gets a token of the landing's, which has no rights", token(dispatcher.JobsNamespace, "courier-node"), true},
		{"creates a Job as the dispatcher does", create(func(job *batchv1.Job) client.Object { return job }), false},
		{"creates a pod", create(func(job *batchv1.Job) client.Object { return boundPod(job, "win-1") }), false},
		{"forges a snapshot", create(func(*batchv1.Job) client.Object {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.JobsNamespace, Name: "kubelet-ca-of-mine"}}
		}), false},
		{"moves a snapshot to the front", patch(snapshotObject(), `{"metadata":{"annotations":{"kubelet-ca-courier/sequence":"9"}}}`), false},
		{"chooses the image", patch(settingsObject(), `{"data":{"config.yaml":"image: evil/image"}}`), false},
		{"gets a token of courier's", token(dispatcher.ManagerNamespace, "courier"), false},
	},
	guardedNamespace: {
		// The gate cannot be reached here, and an editor is none of those who may write without it.
		{"edits the guarded ConfigMap past the gate", patch(guardedObject(), `{"data":{"ca-bundle.crt":"x"}}`), false},
		{"deletes the guarded ConfigMap past the gate", remove(guardedObject()), false},
		{"creates a Job", create(func(job *batchv1.Job) client.Object { return job }), false},
		{"chooses the image", patch(settingsObject(), `{"data":{"config.yaml":"image: evil/image"}}`), false},
		{"gets a token of courier's", token(dispatcher.ManagerNamespace, "courier"), false},
	},
}

func settingsObject() client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.ManagerNamespace, Name: "courier-config"}}
}

func guardedObject() client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: guardedNamespace, Name: guardedName}}
}

func snapshotObject() client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: dispatcher.JobsNamespace, Name: "kubelet-ca-0123456789abcdef"}}
}

func roleBinding(namespace string) client.Object {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "more"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: editor}},
	}
}

func patch(object client.Object, text string) func(*testing.T, client.Client, *batchv1.Job) error {
	return func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		return as.Patch(t.Context(), object.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(text)), client.DryRunAll)
	}
}

func remove(object client.Object) func(*testing.T, client.Client, *batchv1.Job) error {
	return func(t *testing.T, as client.Client, _ *batchv1.Job) error {
		return as.Delete(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
	}
}

func create(object func(*batchv1.Job) client.Object) func(*testing.T, client.Client, *batchv1.Job) error {
	return func(t *testing.T, as client.Client, job *batchv1.Job) error {
		made := job.DeepCopy()
		made.Name = "win-2"
		return as.Create(t.Context(), object(made), client.DryRunAll)
	}
}

// TestAnEditorOfANamespaceGainsWhatTheDocumentsSay tries each namespace's editor. That one of the manager's namespace can do
// everything is no surprise to be found by others.
func TestAnEditorOfANamespaceGainsWhatTheDocumentsSay(t *testing.T) {
	s := startWith(t, "openshift")
	s.awaitPolicies(t)
	must := func(err error) {
		t.Helper()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	job := realJob(t, s.objects, func(*dispatcher.Config) {})
	manager := s.as(t, managerAccount, "")
	must(manager.Create(t.Context(), snapshotObject()))
	must(manager.Create(t.Context(), job.DeepCopy()))
	operator := s.as(t, "system:serviceaccount:openshift-kube-apiserver-operator:kube-apiserver-operator", "system:masters")
	must(operator.Create(t.Context(), guardedObject()))

	for namespace, attempts := range editorAttempts {
		user := editor + "-of-" + namespace
		for _, part := range []string{"system:aggregate-to-edit", "system:aggregate-to-view"} { // what a controller joins to edit
			must(s.admin.Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: part},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: part},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
			}))
		}
		as := s.as(t, user, "")
		eventually(t, func() error { return as.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(namespace)) })
		for _, attempt := range attempts {
			t.Run(namespace+": "+attempt.name, func(t *testing.T) {
				err := attempt.try(t, as, job)
				if attempt.allowed && err != nil {
					t.Errorf("refused: %v", err)
				}
				// An API server that cannot ask the gate refuses with an internal error.
				gateIsAway := namespace == guardedNamespace && apierrors.IsInternalError(err)
				if !attempt.allowed && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !gateIsAway {
					t.Errorf("%v, want a refusal", err)
				}
			})
		}
	}
}
