package decade

import (
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

// jobController is a model of the Job controller, of the scheduler as far as Jobs pinned to nodes need one, and of the
// garbage collector.
type jobController struct {
	w    *world
	pods int
}

func jobID(name string) id { return id{"jobs", dispatcher.JobsNamespace, name} }
func podID(name string) id { return id{"pods", dispatcher.JobsNamespace, name} }

// job returns the Job if it is still that one, and nil otherwise.
func (j *jobController) job(name string, uid types.UID) *batchv1.Job {
	job, _ := j.w.api.objects[jobID(name)].(*batchv1.Job)
	if job == nil || job.UID != uid {
		return nil
	}
	return job
}

// see acts on Jobs that come and go, and on pods that end.
func (j *jobController) see(k id, old, now client.Object) {
	switch {
	case k.kind == "jobs" && old == nil:
		j.w.stats[jobs]++
		j.w.stats[ofCause(dispatcher.Cause(now.GetAnnotations()[dispatcher.AnnotationCause]))]++
		uid := now.GetUID()
		j.w.after(j.w.between("jobs/sync", time.Second, 4*time.Second), func() { j.makePod(k.name, uid) })
		deadline := time.Duration(*now.(*batchv1.Job).Spec.ActiveDeadlineSeconds) * time.Second
		j.w.after(deadline, func() { j.expire(k.name, uid) })
	case k.kind == "jobs" && now == nil:
		uid := old.GetUID()
		j.w.after(j.w.between("gc/pods", time.Second, 20*time.Second), func() { j.endPods(uid) })
	case k.kind == "pods" && now != nil && phase(now) != phase(old):
		j.w.after(j.w.between("jobs/pod", 0, 2*time.Second), func() { j.podEnded(k) })
	case k.kind == "nodes" && now == nil:
		j.w.after(j.w.between("gc/node", time.Second, time.Minute), func() { j.collect(old.GetName(), old.GetUID()) })
	}
}

func phase(object client.Object) corev1.PodPhase {
	if pod, ok := object.(*corev1.Pod); ok && pod != nil {
		return pod.Status.Phase
	}
	return ""
}

func finished(job *batchv1.Job) bool { return len(job.Status.Conditions) > 0 }

// makePod makes a pod on the Job's node. While there is no such node the pod stays unscheduled, which is like no pod.
func (j *jobController) makePod(name string, uid types.UID) {
	job := j.job(name, uid)
	if job == nil || finished(job) || job.DeletionTimestamp != nil || !j.w.powered.on {
		return
	}
	target := job.Annotations[dispatcher.AnnotationNodeName]
	if _, exists := j.w.api.objects[id{"nodes", "", target}]; !exists || !j.w.api.up.on {
		j.w.after(time.Minute, func() { j.makePod(name, uid) })
		return
	}
	j.pods++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Labels:          job.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: name, UID: uid}},
		},
		Spec:   *job.Spec.Template.Spec.DeepCopy(),
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	pod.Spec.NodeName = target
	k := podID(fmt.Sprintf("%s-%05d", name, j.pods))
	pod.Name = k.name
	if err := j.w.api.put(userSystem, k, pod); err != nil {
		j.w.after(10*time.Second, func() { j.makePod(name, uid) })
	}
}

// podsOf are the pods of a Job.
func (j *jobController) podsOf(uid types.UID) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, object := range j.w.api.all("pods", dispatcher.JobsNamespace) {
		if slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == uid }) {
			pods = append(pods, object.(*corev1.Pod))
		}
	}
	return pods
}

// endPods has the pods of a Job that is gone, or has ended, removed; from a node that is away only when it is back.
func (j *jobController) endPods(uid types.UID) {
	for _, pod := range j.podsOf(uid) {
		if pod.DeletionTimestamp == nil {
			k := podID(pod.Name)
			j.w.api.change(k, func(o client.Object) { o.SetDeletionTimestamp(&metav1.Time{Time: j.w.now}) })
			j.w.machine(pod.Spec.NodeName).removePod(k)
		}
	}
}

// gone is told when a pod was removed.
func (j *jobController) gone(pod *corev1.Pod) {
	for _, owner := range pod.OwnerReferences {
		job := j.job(owner.Name, owner.UID)
		if job == nil {
			continue
		}
		if job.DeletionTimestamp != nil {
			j.finishDeletion(owner.Name, owner.UID)
			continue
		}
		if !finished(job) { // a pod that was deleted counts for nothing, and gets a successor
			j.w.after(j.w.between("jobs/again", time.Second, 10*time.Second), func() { j.makePodIfNone(owner.Name, owner.UID) })
		}
	}
}

func (j *jobController) makePodIfNone(name string, uid types.UID) {
	for _, pod := range j.podsOf(uid) {
		if pod.Status.Phase == corev1.PodPending || pod.Status.Phase == corev1.PodRunning {
			return
		}
	}
	j.makePod(name, uid)
}

// deleteInForeground has the pods removed first.
func (j *jobController) deleteInForeground(k id) {
	job, _ := j.w.api.objects[k].(*batchv1.Job)
	if job == nil || job.DeletionTimestamp != nil {
		return
	}
	j.w.api.change(k, func(o client.Object) { o.SetDeletionTimestamp(&metav1.Time{Time: j.w.now}) })
	uid := job.UID
	j.w.after(j.w.between("gc/foreground", 100*time.Millisecond, 5*time.Second), func() {
		j.endPods(uid)
		j.finishDeletion(k.name, uid)
	})
}

func (j *jobController) finishDeletion(name string, uid types.UID) {
	if job := j.job(name, uid); job != nil && job.DeletionTimestamp != nil && len(j.podsOf(uid)) == 0 {
		if err := j.w.api.remove(userSystem, jobID(name)); err != nil {
			j.w.after(10*time.Second, func() { j.finishDeletion(name, uid) })
		}
	}
}

// collect removes the Jobs of a node that is gone.
func (j *jobController) collect(node string, uid types.UID) {
	for _, object := range j.w.api.all("jobs", dispatcher.JobsNamespace) {
		for _, owner := range object.GetOwnerReferences() {
			if owner.UID == uid && owner.Name == node {
				if err := j.w.api.remove(userSystem, jobID(object.GetName())); err != nil {
					j.w.after(time.Minute, func() { j.collect(node, uid) })
				}
			}
		}
	}
}

// expire ends a Job at its deadline.
func (j *jobController) expire(name string, uid types.UID) {
	if job := j.job(name, uid); job != nil && !finished(job) && job.DeletionTimestamp == nil {
		j.end(name, batchv1.JobFailed, "Job was active longer than specified deadline")
		j.endPods(uid)
	}
}

// end gives a Job its last condition.
func (j *jobController) end(name string, kind batchv1.JobConditionType, message string) {
	j.w.api.change(jobID(name), func(o client.Object) {
		o.(*batchv1.Job).Status.Conditions = []batchv1.JobCondition{{
			Type: kind, Status: corev1.ConditionTrue, Message: message, LastTransitionTime: metav1.Time{Time: j.w.now.Truncate(time.Second)},
		}}
	})
}

// podEnded counts a pod's end, by the Job's own pod failure policy.
func (j *jobController) podEnded(k id) {
	pod, _ := j.w.api.objects[k].(*corev1.Pod)
	if pod == nil || pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		return
	}
	name, uid := pod.OwnerReferences[0].Name, pod.OwnerReferences[0].UID
	job := j.job(name, uid)
	if job == nil || finished(job) || job.DeletionTimestamp != nil {
		return
	}
	if pod.Status.Phase == corev1.PodSucceeded {
		j.end(name, batchv1.JobComplete, "")
		return
	}
	code := pod.Status.ContainerStatuses[0].State.Terminated.ExitCode
	for i, rule := range job.Spec.PodFailurePolicy.Rules {
		if rule.OnExitCodes != nil && slices.Contains(rule.OnExitCodes.Values, code) {
			j.end(name, batchv1.JobFailed, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching %s rule at index %d",
				pod.Spec.Containers[0].Name, pod.Namespace, pod.Name, code, rule.Action, i))
			return
		}
	}
	failed := 0
	for _, other := range j.podsOf(uid) {
		if other.Status.Phase == corev1.PodFailed {
			failed++
		}
	}
	if failed > int(*job.Spec.BackoffLimit) {
		j.end(name, batchv1.JobFailed, "Job has reached the specified backoff limit")
		return
	}
	j.w.after(10*time.Second<<failed, func() { j.makePodIfNone(name, uid) })
}
