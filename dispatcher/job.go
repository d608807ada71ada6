package dispatcher

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"kubelet-ca-courier/node"
)

const (
	// serviceAccount is what the Jobs' pods run as. It has no rights.
	serviceAccount = "courier-node"
	// container is the name of the Job's only container.
	container = "courier-node"
	// volume is the name of the volume that holds the bundle.
	volume = "bundle"
	// podRetries is how often the Job controller itself starts anew what the landing did not end: fewer than one in a
	// hundred starts of a HostProcess container fail with "access is denied" (hcsshim issue 2017).
	podRetries = 3
)

// Target is what every node that is served should hold, and how it gets there.
type Target struct {
	// Snapshot is the bundle.
	Snapshot Snapshot
	// Settings are those that the Jobs are built from.
	Settings Settings
	// Template hashes all that the Jobs have in common.
	Template string
	base     *batchv1.Job
}

// NewTarget builds what the Jobs of all nodes have in common and lays the admin's patch over it.
func NewTarget(s Snapshot, c Config, namespace string) (Target, error) {
	base, err := patched(commonJob(s, c.Settings), c.Patch)
	if err != nil {
		return Target{}, err
	}
	pin(base, commonJob(s, c.Settings))
	base.Namespace = namespace
	return Target{Snapshot: s, Settings: c.Settings, Template: digest(base), base: base}, nil
}

// Attempt says for what reason a Job is made.
type Attempt struct {
	// Number counts from 1.
	Number int
	// Cause is the reason.
	Cause Cause
	// Held says that the node was seen to hold the bundle before.
	Held bool
	// LastFailure says how the previous attempt ended; empty for the first.
	LastFailure string
}

// Job builds the Job for one node.
func (t Target) Job(n Node, a Attempt) *batchv1.Job {
	key := NodeKey(n.Name)
	job := t.base.DeepCopy()
	job.Name = key
	job.Labels[LabelNode] = key
	job.Annotations[AnnotationNodeName] = n.Name
	job.Annotations[AnnotationBootID] = n.BootID
	job.Annotations[AnnotationTemplate] = t.Template
	job.Annotations[AnnotationSequence] = strconv.FormatInt(t.Snapshot.Sequence, 10)
	job.Annotations[AnnotationAttempt] = strconv.Itoa(a.Number)
	job.Annotations[AnnotationCause] = string(a.Cause)
	if a.Held {
		job.Annotations[AnnotationHeld] = "true"
	}
	if a.LastFailure != "" {
		job.Annotations[AnnotationLastFailure] = a.LastFailure
	}
	// Without blockOwnerDeletion: that would need rights on nodes/finalizers, and hold up a node's deletion.
	job.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
	job.Spec.Template.Labels[LabelNode] = key
	job.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: onNode(n.Name)}
	return job
}

// onNode pins a pod to one node by its name. The hostname label would not do: it may be missing, or another node's too.
func onNode(name string) *corev1.NodeAffinity {
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}},
		}}},
	}}
}

// commonJob is the Job before it is patched and given to a node.
func commonJob(s Snapshot, settings Settings) *batchv1.Job {
	labels := map[string]string{
		LabelManagedBy: ManagedBy,
		LabelBundle:    shortHash(s.Hash),
		LabelMode:      string(settings.Mode),
	}
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Labels: labels,
			Annotations: map[string]string{
				AnnotationHash:        s.Hash,
				AnnotationDestination: settings.Destination,
			},
		},
		Spec: batchv1.JobSpec{
			Parallelism:          ptr.To[int32](1),
			Completions:          ptr.To[int32](1),
			BackoffLimit:         ptr.To[int32](podRetries),
			PodReplacementPolicy: ptr.To(batchv1.Failed),
			PodFailurePolicy:     failurePolicy(),
			// Counts from the Job's creation, the wait for an image included: a pull that fails never fails a Job
			// otherwise (kubernetes issue 101584).
			ActiveDeadlineSeconds: ptr.To(int64(settings.Deadline.Duration / time.Second)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: copyOf(labels)},
				Spec:       podSpec(s, settings),
			},
		},
	}
}

// failurePolicy ends the Job at once when the landing has said how it went: the condition's message then carries the exit
// code, and when to try again is the dispatcher's to say, which knows the pace. What never got to run, or was killed, the
// Job controller starts anew. A pod that was evicted or deleted counts for nothing.
func failurePolicy() *batchv1.PodFailurePolicy {
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{
			Action: batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
			},
		},
		{
			Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				ContainerName: ptr.To(container),
				Operator:      batchv1.PodFailurePolicyOnExitCodesOpIn,
				Values:        reportedCodes(),
			},
		},
	}}
}

// reportedCodes are the exit codes by which the landing itself says that the node is not as it should be.
func reportedCodes() []int32 {
	var codes []int32
	for code := node.ExitInternal; code <= node.ExitWouldRemove; code++ {
		if code <= node.ExitNotConfirmed || code >= node.ExitWouldChange {
			codes = append(codes, int32(code))
		}
	}
	return codes
}

// podSpec is a HostProcess pod that runs on whatever state its node is in. What Windows pods refuse (seccomp profiles,
// capabilities, user ids) is left out: k8s.io/kubernetes pkg/apis/core/validation, validateWindows.
func podSpec(s Snapshot, settings Settings) corev1.PodSpec {
	return corev1.PodSpec{
		OS:                           &corev1.PodOS{Name: corev1.Windows},
		HostNetwork:                  true,
		RestartPolicy:                corev1.RestartPolicyNever,
		ServiceAccountName:           serviceAccount,
		AutomountServiceAccountToken: ptr.To(false),
		EnableServiceLinks:           ptr.To(false),
		PriorityClassName:            "system-node-critical",
		Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		SecurityContext: &corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{
			HostProcess:   ptr.To(true),
			RunAsUserName: ptr.To(`NT AUTHORITY\SYSTEM`),
		}},
		Containers: []corev1.Container{{
			Name:      container,
			Image:     settings.Image,
			Command:   []string{node.Command},
			Args:      arguments(s, settings),
			Resources: resources(),
			// The end of the landing's output becomes part of the pod's status when it fails, so that the reason can be
			// read where the kubelet does not let the API server in any more.
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			VolumeMounts: []corev1.VolumeMount{{
				Name: volume, MountPath: node.VolumePath, ReadOnly: true,
			}},
		}},
		Volumes: []corev1.Volume{bundleVolume(s)},
	}
}

func bundleVolume(s Snapshot) corev1.Volume {
	return corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: s.Name},
		Items:                []corev1.KeyToPath{{Key: node.BundleKey, Path: node.BundleKey}},
	}}}
}

// arguments never hold the bundle: cmd.exe, through which the landing may be started, ends lines at 8,191 characters.
func arguments(s Snapshot, settings Settings) []string {
	args := append([]string(nil), settings.ExtraArgs...)
	args = append(args,
		"--source", node.VolumePath+`\`+node.BundleKey,
		"--sha256", s.Hash,
		"--destination", settings.Destination,
	)
	if settings.Mode == Observe {
		args = append(args, "--dry-run")
	}
	return args
}

// resources are set, requests and limits alike, since a ResourceQuota may demand them.
func resources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("10m"),
			corev1.ResourceMemory: resource.MustParse("32Mi"),
		},
		Limits: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("500m"),
			corev1.ResourceMemory: resource.MustParse("128Mi"),
		},
	}
}

// patched lays a strategic-merge patch over the Job. The outcome is read strictly, so that a misspelt field is an error.
func patched(job *batchv1.Job, patch []byte) (*batchv1.Job, error) {
	original, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("encode the Job: %w", err)
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patch, batchv1.Job{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", JobKey, err)
	}
	out := &batchv1.Job{}
	if err := yaml.UnmarshalStrict(merged, out); err != nil {
		return nil, fmt.Errorf("%s: %w", JobKey, err)
	}
	if len(out.Spec.Template.Spec.Containers) != 1 {
		return nil, fmt.Errorf("%s: the Job has one container, %s", JobKey, container)
	}
	return out, nil
}

// pin restores what the dispatcher's promises rest on, whatever the patch said: one pod at a time, once, with this
// program on this bundle, and a record that stays.
func pin(job, want *batchv1.Job) {
	job.ObjectMeta = metav1.ObjectMeta{
		Labels:      overlaid(job.Labels, want.Labels),
		Annotations: overlaid(job.Annotations, want.Annotations),
	}
	spec := &job.Spec
	spec.Parallelism, spec.Completions = want.Spec.Parallelism, want.Spec.Completions
	spec.PodReplacementPolicy, spec.PodFailurePolicy = want.Spec.PodReplacementPolicy, want.Spec.PodFailurePolicy
	if spec.ActiveDeadlineSeconds == nil {
		spec.ActiveDeadlineSeconds = want.Spec.ActiveDeadlineSeconds
	}
	spec.TTLSecondsAfterFinished, spec.Suspend, spec.ManagedBy = nil, nil, nil
	spec.CompletionMode, spec.Selector, spec.ManualSelector, spec.SuccessPolicy = nil, nil, nil, nil
	spec.Template.Labels = overlaid(spec.Template.Labels, want.Spec.Template.Labels)
	pod, wanted := &spec.Template.Spec, &want.Spec.Template.Spec
	pod.RestartPolicy, pod.NodeName, pod.NodeSelector = wanted.RestartPolicy, "", nil
	pod.ServiceAccountName, pod.AutomountServiceAccountToken = wanted.ServiceAccountName, wanted.AutomountServiceAccountToken
	pod.DeprecatedServiceAccount, pod.InitContainers = "", nil
	landing := wanted.Containers[0]
	landing.Resources = pod.Containers[0].Resources
	landing.ImagePullPolicy = pod.Containers[0].ImagePullPolicy
	pod.Containers = []corev1.Container{landing}
	pod.Volumes = wanted.Volumes
	job.Status = batchv1.JobStatus{}
}

// overlaid returns the union of two maps; the second one wins. It is never nil.
func overlaid(under, over map[string]string) map[string]string {
	out := copyOf(under)
	for key, value := range over {
		out[key] = value
	}
	return out
}

func copyOf(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for key, value := range m {
		out[key] = value
	}
	return out
}
