package dispatcher

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/node"
)

// buildJob builds the Job of one node with the given lines in the settings and the given template.
func buildJob(t *testing.T, settings, template string) *batchv1.Job {
	t.Helper()
	c, err := ParseConfig(map[string]string{SettingsKey: minimal + settings, JobKey: template})
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.Repeat("0123456789abcdef", 4)
	target, err := NewTarget(Snapshot{Name: snapshotName(hash), Hash: hash, Sequence: 7}, c, JobsNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return target.Job(Node{Name: "win.example", UID: "u1", BootID: "b1"}, Attempt{Number: 2, Cause: CauseRetry, LastFailure: "it failed"})
}

func TestAJobIsItsOwnRecord(t *testing.T) {
	job := buildJob(t, "", "")
	got := ReadRecord(job)
	want := Record{
		Name: NodeKey("win.example"), NodeName: "win.example", NodeUID: "u1", BootID: "b1", Hash: strings.Repeat("0123456789abcdef", 4),
		Destination: `C:\k\kubelet-ca.crt`, Template: got.Template, Sequence: 7, Mode: Enforce, Cause: CauseRetry, Attempt: 2,
		LastFailure: "it failed", Phase: Live,
	}
	if diff := cmp.Diff(want, got); diff != "" || got.Template == "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	trimmed, err := trimJob(job.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, ReadRecord(trimmed.(*batchv1.Job))); diff != "" {
		t.Errorf("what the cache keeps reads differently (-full +trimmed):\n%s", diff)
	}
}

func TestAJobIsAHostProcessPodPinnedToItsNode(t *testing.T) {
	job := buildJob(t, "", "")
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "win.example", UID: "u1"}
	if diff := cmp.Diff([]metav1.OwnerReference{owner}, job.OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	pod := job.Spec.Template.Spec
	term := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0]
	if term.Key != "metadata.name" || !slices.Equal(term.Values, []string{"win.example"}) {
		t.Errorf("pinned by %+v", term)
	}
	if !*pod.SecurityContext.WindowsOptions.HostProcess || !pod.HostNetwork || pod.OS.Name != corev1.Windows {
		t.Error("not a HostProcess pod")
	}
	if *pod.AutomountServiceAccountToken || pod.PriorityClassName != "system-node-critical" || pod.RestartPolicy != corev1.RestartPolicyNever {
		t.Error("a token, a low priority or restarts")
	}
	requests, limits := pod.Containers[0].Resources.Requests, pod.Containers[0].Resources.Limits
	if len(requests) != 2 || len(limits) != 2 {
		t.Errorf("requests %v, limits %v; a quota may demand both", requests, limits)
	}
	if pod.Containers[0].TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		t.Error("what a failed landing says does not become part of the pod's status")
	}
	want := []string{"--source", `C:\kubelet-ca-courier\ca-bundle.crt`, "--sha256", strings.Repeat("0123456789abcdef", 4), "--destination", `C:\k\kubelet-ca.crt`}
	if diff := cmp.Diff(want, pod.Containers[0].Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if length := len(strings.Join(pod.Containers[0].Args, " ")); length > 1000 {
		t.Errorf("a command line of %d characters", length)
	}
}

func TestObserveModeIsADryRun(t *testing.T) {
	job := buildJob(t, "mode: observe", "")
	if args := job.Spec.Template.Spec.Containers[0].Args; args[len(args)-1] != "--dry-run" {
		t.Errorf("arguments %v", args)
	}
}

func TestEveryExitCodeOfTheLandingEndsTheJob(t *testing.T) {
	rule := buildJob(t, "", "").Spec.PodFailurePolicy.Rules[1].OnExitCodes
	for code := node.ExitOK; code <= 255; code++ {
		named := !strings.HasPrefix(code.String(), "unknown") && code != node.ExitOK
		if slices.Contains(rule.Values, int32(code)) != named {
			t.Errorf("exit code %d (%s): in the policy %t", code, code, !named)
		}
	}
}

func TestATemplateAddsAndChanges(t *testing.T) {
	job := buildJob(t, "extraArgs: [--create-parent]", `
metadata: {labels: {team: windows}, annotations: {note: hello}}
spec:
  activeDeadlineSeconds: 60
  template:
    metadata: {labels: {team: windows}}
    spec:
      imagePullSecrets: [{name: pull}]
      containers:
      - name: courier-node
        imagePullPolicy: Always
        resources: {limits: {memory: 64Mi}}
`)
	pod := job.Spec.Template.Spec
	if job.Labels["team"] != "windows" || job.Annotations["note"] != "hello" || job.Spec.Template.Labels["team"] != "windows" {
		t.Error("labels and annotations are missing")
	}
	if *job.Spec.ActiveDeadlineSeconds != 60 || pod.ImagePullSecrets[0].Name != "pull" || pod.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Error("deadline, pull secret or pull policy are missing")
	}
	if memory := pod.Containers[0].Resources.Limits[corev1.ResourceMemory]; memory.String() != "64Mi" || len(pod.Containers[0].Resources.Limits) != 2 {
		t.Errorf("limits %v", pod.Containers[0].Resources.Limits)
	}
	if pod.Containers[0].Args[0] != "--create-parent" {
		t.Errorf("arguments %v", pod.Containers[0].Args)
	}
}

func TestATemplateCannotTakeAwayWhatThePromisesRestOn(t *testing.T) {
	job := buildJob(t, "", `
metadata: {name: other, namespace: other, labels: {kubelet-ca-courier/node: other}, annotations: {kubelet-ca-courier/sha256: other}}
spec:
  parallelism: 5
  completions: 5
  suspend: true
  ttlSecondsAfterFinished: 1
  completionMode: Indexed
  managedBy: example.com/other
  podFailurePolicy: {rules: []}
  podReplacementPolicy: TerminatingOrFailed
  template:
    spec:
      nodeName: other
      nodeSelector: {a: b}
      restartPolicy: OnFailure
      serviceAccountName: admin
      automountServiceAccountToken: true
      affinity: {}
      initContainers: [{name: i, image: i}]
      volumes: [{name: root, hostPath: {path: "C:\\"}}]
      containers: [{name: courier-node, image: other, command: [cmd], args: [other]}]
`)
	want := buildJob(t, "", "")
	want.Annotations[AnnotationTemplate] = job.Annotations[AnnotationTemplate]
	if diff := cmp.Diff(want, job); diff != "" {
		t.Errorf("the template changed (-want +got):\n%s", diff)
	}
}

func TestTheTemplateHashChangesWithWhatIsBuiltAndWithNothingElse(t *testing.T) {
	hash := func(settings, template string) string {
		return buildJob(t, settings, template).Annotations[AnnotationTemplate]
	}
	if hash("", "") != hash("maxParallel: 3\nlookAgain: 2h", "{}") {
		t.Error("the pace changes the hash")
	}
	if hash("", "") == hash("mode: observe", "") || hash("", "") == hash("", "spec: {activeDeadlineSeconds: 61}") {
		t.Error("mode or template do not change the hash")
	}
}

func TestTheExitCodeIsReadFromTheConditionOfTheJob(t *testing.T) {
	for _, test := range []struct {
		name, message string
		want          int
	}{
		{"a pod failure policy", "Container courier-node for pod kubelet-ca-courier/win-x failed with exit code 21 matching FailJob rule at index 1", 21},
		{"a deadline", "Job was active longer than specified deadline", -1},
		{"too many pods", "Job has reached the specified backoff limit", -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			job := buildJob(t, "", "")
			job.Status.Conditions = []batchv1.JobCondition{
				{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, Message: "not this one"},
				{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Message: test.message},
			}
			got := -1
			if r := ReadRecord(job); r.Exit != nil {
				got = int(*r.Exit)
			}
			if got != test.want {
				t.Errorf("exit code %d, want %d", got, test.want)
			}
		})
	}
}
