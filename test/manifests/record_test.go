package manifests_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

// Controllers of the cluster that touch Jobs.
const (
	garbageCollector    = "system:serviceaccount:kube-system:generic-garbage-collector"
	namespaceController = "system:serviceaccount:kube-system:namespace-controller"
)

// jobChange is a change of a Job in the Jobs' namespace.
type jobChange struct {
	as     string
	change func(*batchv1.Job)
	denied string // empty when it is let through
}

const (
	recordStays = "records of its delivery never changes"
	specStays   = "the spec of a Job here never changes"
	ownersStay  = "only the garbage collector changes the owners"
)

// annotate sets an annotation.
func annotate(key, value string) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Annotations[key] = value }
}

// jobChanges say what may happen to a Job that exists, and what may not.
func jobChanges() map[string]jobChange {
	changes := map[string]jobChange{
		"a record that is taken away": {editor, func(j *batchv1.Job) { delete(j.Annotations, dispatcher.AnnotationHash) }, recordStays},
		"all annotations taken away":  {editor, func(j *batchv1.Job) { j.Annotations = nil }, recordStays},
		"a failure made up":           {editor, annotate(dispatcher.AnnotationLastFailure, "none"), recordStays},
		"another label of ours":       {editor, func(j *batchv1.Job) { j.Labels["kubelet-ca-courier/mine"] = "x" }, recordStays},
		"a label of ours taken away":  {editor, func(j *batchv1.Job) { delete(j.Labels, dispatcher.LabelNode) }, recordStays},
		// With no label at all a Job gets those of its pods, which are the same.
		"foreign labels in the place of ours": {editor, func(j *batchv1.Job) { j.Labels = map[string]string{"team": "a"} }, recordStays},
		"the Job controller's record":         {jobController, annotate(dispatcher.AnnotationHash, "00"), recordStays},
		"the collector's record":              {garbageCollector, annotate(dispatcher.AnnotationHash, "00"), recordStays},
		"another owner": {editor, func(j *batchv1.Job) {
			j.OwnerReferences[0].UID = "2"
		}, ownersStay},
		"a second owner": {editor, func(j *batchv1.Job) {
			j.OwnerReferences = append(j.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "win-2", UID: "2"})
		}, ownersStay},
		"no owner":                     {editor, func(j *batchv1.Job) { j.OwnerReferences = nil }, ownersStay},
		"a suspended Job":              {editor, func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }, specStays},
		"a Job that ends sooner":       {editor, func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) }, specStays},
		"a Job that goes by itself":    {editor, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To[int32](0) }, specStays},
		"a Job that is not run at all": {editor, func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To[int32](0) }, specStays},

		"a foreign annotation":                   {editor, annotate("team", "a"), ""},
		"a foreign label":                        {editor, func(j *batchv1.Job) { j.Labels["team"] = "a" }, ""},
		"a foreign label that begins like ours":  {editor, func(j *batchv1.Job) { j.Labels["kubelet-ca-courier"] = "a" }, ""},
		"a finalizer of someone's":               {editor, func(j *batchv1.Job) { j.Finalizers = append(j.Finalizers, "example.com/x") }, ""},
		"an owner that the collector takes away": {garbageCollector, func(j *batchv1.Job) { j.OwnerReferences = nil }, ""},
		"the same by the old account":            {"system:kube-controller-manager", func(j *batchv1.Job) { j.OwnerReferences = nil }, ""},
		"a finalizer taken away by the collector": {garbageCollector, func(j *batchv1.Job) {
			j.Finalizers = nil
		}, ""},
		"a finalizer taken away with the namespace": {namespaceController, func(j *batchv1.Job) { j.Finalizers = nil }, ""},
	}
	for _, key := range []string{
		dispatcher.AnnotationNodeName, dispatcher.AnnotationBootID, dispatcher.AnnotationHash, dispatcher.AnnotationDestination,
		dispatcher.AnnotationTemplate, dispatcher.AnnotationSequence, dispatcher.AnnotationAttempt, dispatcher.AnnotationCause,
		dispatcher.AnnotationHeld,
	} {
		changes["another "+key] = jobChange{editor, annotate(key, "00"), recordStays}
	}
	for _, key := range []string{dispatcher.LabelNode, dispatcher.LabelBundle, dispatcher.LabelMode, dispatcher.LabelManagedBy} {
		changes["another "+key] = jobChange{editor, func(j *batchv1.Job) { j.Labels[key] = "x" }, recordStays}
	}
	return changes
}

// TestNobodyForgesADelivery changes a Job in every way that could have a node pass for one that holds the bundle, and in the
// ways in which a cluster, and its people, need to.
func TestNobodyForgesADelivery(t *testing.T) {
	s := startWith(t, "openshift")
	s.awaitPolicies(t)
	job := realJob(t, s.objects, func(*dispatcher.Config) {})
	job.Finalizers = []string{metav1.FinalizerDeleteDependents}
	if err := s.as(t, managerAccount, "").Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	for name, test := range jobChanges() {
		t.Run(name, func(t *testing.T) {
			changed := job.DeepCopy()
			changed.ResourceVersion = "" // whatever was written since
			test.change(changed)
			err := s.as(t, test.as, "system:masters").Update(t.Context(), changed, client.DryRunAll)
			if test.denied == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
			} else if err := mustDeny(err, test.denied); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("the Job controller reports how the Job went", func(t *testing.T) {
		changed := &batchv1.Job{}
		if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(job), changed); err != nil {
			t.Fatal(err)
		}
		changed.Status.StartTime, changed.Status.Active = ptr.To(metav1.Now()), 1
		if err := s.as(t, jobController, "system:masters").Status().Update(t.Context(), changed); err != nil {
			t.Error(err)
		}
	})
	t.Run("a Job that was made suspended keeps its pods' labels and place", func(t *testing.T) {
		suspended := realJob(t, s.objects, func(*dispatcher.Config) {})
		suspended.Name, suspended.Spec.Suspend = "suspended", ptr.To(true)
		if err := s.as(t, managerAccount, "").Create(t.Context(), suspended); err != nil {
			t.Fatal(err)
		}
		for what, change := range map[string]func(*corev1.PodTemplateSpec){
			"labels": func(p *corev1.PodTemplateSpec) { p.Labels["x"] = "y" },
			"place":  func(p *corev1.PodTemplateSpec) { p.Spec.NodeSelector = map[string]string{"x": "y"} },
		} {
			changed := suspended.DeepCopy()
			change(&changed.Spec.Template)
			if err := mustDeny(s.as(t, editor, "system:masters").Update(t.Context(), changed, client.DryRunAll), specStays); err != nil {
				t.Errorf("other %s: %v", what, err)
			}
		}
	})
}
