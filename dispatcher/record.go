package dispatcher

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"kubelet-ca-courier/node"
)

// Node is what the dispatcher needs to know of a node.
type Node struct {
	Name    string
	UID     types.UID
	BootID  string
	Ready   bool
	Created time.Time
	Labels  labels.Set
}

// ReadNode reads a node.
func ReadNode(n *corev1.Node) Node {
	out := Node{
		Name:    n.Name,
		UID:     n.UID,
		BootID:  n.Status.NodeInfo.BootID,
		Created: n.CreationTimestamp.Time,
		Labels:  n.Labels,
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			out.Ready = condition.Status == corev1.ConditionTrue
		}
	}
	return out
}

// Phase is how far a Job has come.
type Phase string

const (
	// Live says that the Job has a pod, or may still get one.
	Live Phase = "Live"
	// Succeeded says that the landing exited with 0.
	Succeeded Phase = "Succeeded"
	// Failed says that the Job has ended in any other way.
	Failed Phase = "Failed"
)

// Record is what a Job says about the delivery to its node.
type Record struct {
	Name        string
	UID         types.UID
	NodeName    string
	NodeUID     types.UID
	BootID      string
	Hash        string
	Destination string
	Template    string
	// Sequence is that of the snapshot.
	Sequence int64
	Mode     Mode
	Cause    Cause
	Attempt  int
	// Held says that the node was seen to hold the bundle before.
	Held        bool
	LastFailure string
	Created     time.Time
	Phase       Phase
	// Finished is when the Job ended; zero while it is live.
	Finished time.Time
	// Deleting says that the Job is going, and is only waiting for its pod to be gone.
	Deleting bool
	// Exit is the landing's exit code; nil when none was reported.
	Exit *node.ExitCode
	// Message says why the Job failed.
	Message string
}

// reportedExit finds the exit code in the message that the Job controller gives for a pod failure policy
// (k8s.io/kubernetes pkg/controller/job/pod_failure_policy.go, matchPodFailurePolicy).
var reportedExit = regexp.MustCompile(`failed with exit code (\d+) matching`)

// ReadRecord reads a Job.
func ReadRecord(j *batchv1.Job) Record {
	r := Record{
		Name:        j.Name,
		UID:         j.UID,
		NodeName:    j.Annotations[AnnotationNodeName],
		BootID:      j.Annotations[AnnotationBootID],
		Hash:        j.Annotations[AnnotationHash],
		Destination: j.Annotations[AnnotationDestination],
		Template:    j.Annotations[AnnotationTemplate],
		Mode:        Mode(j.Labels[LabelMode]),
		Cause:       Cause(j.Annotations[AnnotationCause]),
		Held:        j.Annotations[AnnotationHeld] == "true",
		LastFailure: j.Annotations[AnnotationLastFailure],
		Created:     j.CreationTimestamp.Time,
		Deleting:    j.DeletionTimestamp != nil,
		Phase:       Live,
	}
	// None, or nonsense, is as good as 0.
	r.Attempt, _ = strconv.Atoi(j.Annotations[AnnotationAttempt])
	if sequence, err := strconv.ParseInt(j.Annotations[AnnotationSequence], 10, 64); err == nil && sequence > 0 && sequence < lastSequence {
		r.Sequence = sequence
	}
	for _, owner := range j.OwnerReferences {
		if owner.Kind == "Node" && owner.Name == r.NodeName {
			r.NodeUID = owner.UID
		}
	}
	for _, condition := range j.Status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case batchv1.JobComplete:
			r.Phase, r.Finished = Succeeded, condition.LastTransitionTime.Time
			r.Exit = new(node.ExitCode)
		case batchv1.JobFailed:
			r.Phase, r.Finished, r.Message = Failed, condition.LastTransitionTime.Time, condition.Message
			if match := reportedExit.FindStringSubmatch(condition.Message); match != nil {
				code, _ := strconv.Atoi(match[1]) // digits, of an int32
				exit := node.ExitCode(code)
				r.Exit = &exit
			}
		}
	}
	return r
}

// Failure says in a few words how a failed Job ended.
func (r Record) Failure() string {
	if r.Exit != nil {
		return fmt.Sprintf("exit code %d: %s", *r.Exit, *r.Exit)
	}
	return r.Message
}

// brought reports whether the Job brought the node something new; a second look, a reboot or observing does not.
func (r Record) brought() bool {
	return r.Phase == Succeeded && r.Mode == Enforce && r.Cause != CauseLook && r.Cause != CauseReboot
}
