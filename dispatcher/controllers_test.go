package dispatcher

import (
	"fmt"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/node"
)

// behaviour is how the landing ends: an exit code, or never.
type behaviour struct {
	exit  node.ExitCode
	hangs bool
}

// landed is a bundle that was written to a node.
type landed struct {
	hash string
	// accepted is the place of the bundle in the order of acceptance when its Job was made.
	accepted int64
}

// jobsNow lists the Jobs there are.
func (w *world) jobsNow() []batchv1.Job {
	w.t.Helper()
	list := &batchv1.JobList{}
	w.must(w.api.List(w.t.Context(), list, client.InNamespace(JobsNamespace)))
	return list.Items
}

func (w *world) podsNow() []corev1.Pod {
	w.t.Helper()
	list := &corev1.PodList{}
	w.must(w.api.List(w.t.Context(), list, client.InNamespace(JobsNamespace)))
	return list.Items
}

// controllers lets the Job controller start a pod for every live Job that has none.
func (w *world) controllers() {
	w.t.Helper()
	pods := map[types.UID]bool{}
	for _, pod := range w.podsNow() {
		pods[pod.OwnerReferences[0].UID] = true
	}
	for _, job := range w.jobsNow() {
		if pods[job.UID] || job.DeletionTimestamp != nil || ReadRecord(&job).Phase != Live {
			continue
		}
		accepted := ReadRecord(&job).Sequence
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: job.Namespace, Name: w.id(job.Name), Labels: job.Spec.Template.Labels,
				Annotations:     map[string]string{"hash": job.Annotations[AnnotationHash], "accepted": strconv.FormatInt(accepted, 10), "node": job.Annotations[AnnotationNodeName]},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}},
			},
			Spec:   job.Spec.Template.Spec,
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
		w.must(w.api.Create(w.t.Context(), pod))
	}
}

// kubelets let every running pod on a Ready node come to its end, if it does.
func (w *world) kubelets() {
	w.t.Helper()
	for _, pod := range w.podsNow() {
		if pod.Status.Phase == corev1.PodRunning {
			w.land(&pod)
		}
	}
}

// land runs the landing in a pod and lets the Job controller draw its conclusion.
func (w *world) land(pod *corev1.Pod) {
	w.t.Helper()
	name := pod.Annotations["node"]
	behaviour := w.behave[name]
	if behaviour.hangs || !w.ready(name) {
		return
	}
	exit := behaviour.exit
	observing := pod.Labels[LabelMode] == string(Observe)
	if exit == node.ExitOK && observing && w.onDisk(name) != pod.Annotations["hash"] {
		exit = node.ExitWouldChange
	}
	if exit == node.ExitOK && !observing {
		w.write(name, pod)
	}
	pod.Status.Phase = corev1.PodSucceeded
	if exit != node.ExitOK {
		pod.Status.Phase = corev1.PodFailed
	}
	w.must(w.api.Status().Update(w.t.Context(), pod))
	w.conclude(pod, exit)
}

// write puts the bundle on the node's disk. An older one after a newer one is what must never be.
func (w *world) write(name string, pod *corev1.Pod) {
	w.t.Helper()
	var accepted int64
	_, err := fmt.Sscan(pod.Annotations["accepted"], &accepted)
	w.must(err)
	disk := w.disks[name]
	if len(disk) > 0 && disk[len(disk)-1].accepted > accepted {
		w.t.Fatalf("an older bundle was written to %s after a newer one", name)
	}
	w.disks[name] = append(disk, landed{hash: pod.Annotations["hash"], accepted: accepted})
}

// onDisk is the hash of what the node holds.
func (w *world) onDisk(name string) string {
	disk := w.disks[name]
	if len(disk) == 0 {
		return ""
	}
	return disk[len(disk)-1].hash
}

func (w *world) ready(name string) bool {
	w.t.Helper()
	n := &corev1.Node{}
	err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, n)
	if apierrors.IsNotFound(err) {
		return false
	}
	w.must(err)
	return ReadNode(n).Ready
}

// conclude gives the pod's Job its condition.
func (w *world) conclude(pod *corev1.Pod, exit node.ExitCode) {
	w.t.Helper()
	condition := batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}
	if exit != node.ExitOK {
		condition = batchv1.JobCondition{
			Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonPodFailurePolicy,
			Message: fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching FailJob rule at index 1",
				container, pod.Namespace, pod.Name, exit),
		}
	}
	w.endJob(pod.OwnerReferences[0], condition)
}

// endJob ends the Job of this identity, if it is still there.
func (w *world) endJob(owner metav1.OwnerReference, condition batchv1.JobCondition) {
	w.t.Helper()
	job := &batchv1.Job{}
	err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: JobsNamespace, Name: owner.Name}, job)
	if apierrors.IsNotFound(err) || job.UID != owner.UID {
		return
	}
	w.must(err)
	if ReadRecord(job).Phase != Live {
		return
	}
	condition.LastTransitionTime = metav1.NewTime(w.clock.Now())
	job.Status.Conditions = append(job.Status.Conditions, condition)
	w.must(w.api.Status().Update(w.t.Context(), job))
}

// collect is the garbage collector: Jobs of nodes that are gone, pods of Jobs that are gone or going, and then the
// finalizers of those. A pod that runs on a node that is not Ready cannot be ended.
func (w *world) collect() {
	w.t.Helper()
	ctx := w.t.Context()
	uids := map[types.UID]bool{}
	nodes := &corev1.NodeList{}
	w.must(w.api.List(ctx, nodes))
	for _, n := range nodes.Items {
		uids[n.UID] = true
	}
	for _, job := range w.jobsNow() {
		if len(job.OwnerReferences) > 0 && !uids[job.OwnerReferences[0].UID] && job.DeletionTimestamp == nil {
			w.must(w.api.Delete(ctx, &job))
		}
	}
	going := map[types.UID]*batchv1.Job{}
	for _, job := range w.jobsNow() {
		uids[job.UID] = true
		if job.DeletionTimestamp != nil {
			going[job.UID] = &job
		}
	}
	for _, pod := range w.podsNow() {
		owner := pod.OwnerReferences[0].UID
		if uids[owner] && going[owner] == nil {
			continue
		}
		name := pod.Annotations["node"]
		err := w.api.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
		if err == nil && !w.ready(name) && pod.Status.Phase == corev1.PodRunning {
			delete(going, owner)
			continue
		}
		w.must(w.api.Delete(ctx, &pod))
	}
	for _, job := range going {
		job.Finalizers = nil
		w.must(w.api.Update(ctx, job))
	}
}

// turn lets everyone in the cluster do what there is to do, once.
func (w *world) turn() {
	w.t.Helper()
	for _, r := range w.dispatchers {
		r.sync()
		if !r.work() {
			w.restart()
			return
		}
	}
	now := fmt.Sprint(w.mutations, w.behave)
	if now == w.rest {
		return
	}
	w.controllers()
	w.kubelets()
	w.collect()
	w.rest = now
}

// settle takes turns, a second apart, until nothing changes any more and no dispatcher means to do something within
// seconds.
func (w *world) settle() {
	w.t.Helper()
	const most = 2000
	for range most {
		before := w.mutations
		w.turn()
		if before == w.mutations && w.due().Sub(w.clock.Now()) > 15*time.Second {
			return
		}
		w.clock.SetTime(w.clock.Now().Add(time.Second))
	}
	w.t.Fatal("the cluster does not come to rest")
}

// pass lets time go by. It stops wherever something happens, or a dispatcher means to do something.
func (w *world) pass(long time.Duration) {
	w.t.Helper()
	end := w.clock.Now().Add(long)
	for w.clock.Now().Before(end) {
		before := w.mutations
		w.turn()
		next := w.clock.Now().Add(time.Second)
		if due := w.due(); before == w.mutations && due.After(next) {
			next = due
		}
		if next.After(end) {
			next = end
		}
		w.clock.SetTime(next)
	}
	w.turn()
}

// due is when a dispatcher next means to do something.
func (w *world) due() time.Time {
	next := w.clock.Now().Add(24 * time.Hour)
	for _, r := range w.dispatchers {
		for _, due := range r.timer {
			if due.Before(next) {
				next = due
			}
		}
	}
	return next
}
