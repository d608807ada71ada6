package dispatcher

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Namespaces and names that courier uses unless its flags say otherwise.
const (
	// ManagerNamespace is where courier itself and its configuration are.
	ManagerNamespace = "kubelet-ca-courier-system"
	// JobsNamespace is where Jobs and snapshots are.
	JobsNamespace = "kubelet-ca-courier"
	// ConfigName is the name of the ConfigMap that configures courier, in the manager's namespace.
	ConfigName = "courier-config"
	// SnapshotPrefix begins the name of every snapshot.
	SnapshotPrefix = "kubelet-ca-"
	// ManagedBy is the value of the label app.kubernetes.io/managed-by on everything that the dispatcher creates.
	ManagedBy = "kubelet-ca-courier"
)

// Labels of Jobs, their pods and snapshots.
const (
	// LabelManagedBy is the well-known label that tells the dispatcher's objects from others'.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// LabelNode holds [NodeKey] of the node.
	LabelNode = "kubelet-ca-courier/node"
	// LabelBundle holds the first 16 hexadecimal digits of the bundle's hash.
	LabelBundle = "kubelet-ca-courier/bundle"
	// LabelMode holds the mode that the Job runs in.
	LabelMode = "kubelet-ca-courier/mode"
)

// Annotations of Jobs: the record of a delivery.
const (
	// AnnotationNodeName holds the node's full name; a label is too short for it.
	AnnotationNodeName = "kubelet-ca-courier/node-name"
	// AnnotationBootID holds the node's boot id at the time of the Job's creation.
	AnnotationBootID = "kubelet-ca-courier/boot-id"
	// AnnotationHash holds the bundle's full hash.
	AnnotationHash = "kubelet-ca-courier/sha256"
	// AnnotationDestination holds the path that the Job writes to.
	AnnotationDestination = "kubelet-ca-courier/destination"
	// AnnotationTemplate holds a hash of all that the Jobs of one rollout have in common.
	AnnotationTemplate = "kubelet-ca-courier/template"
	// AnnotationAttempt counts the Jobs that were made for the node since something last changed.
	AnnotationAttempt = "kubelet-ca-courier/attempt"
	// AnnotationCause holds the reason for which the Job was created.
	AnnotationCause = "kubelet-ca-courier/cause"
	// AnnotationHeld is "true" when the node was seen to hold the bundle already before the Job was created.
	AnnotationHeld = "kubelet-ca-courier/held"
	// AnnotationLastFailure says how the attempt before this one ended.
	AnnotationLastFailure = "kubelet-ca-courier/last-failure"
)

// Annotations of snapshots.
const (
	// AnnotationSequence orders snapshots: the highest is the one to be delivered. A Job has that of its snapshot.
	AnnotationSequence = "kubelet-ca-courier/sequence"
	// AnnotationAccepted holds the time at which the snapshot became the one to be delivered.
	AnnotationAccepted = "kubelet-ca-courier/accepted"
	// AnnotationSources holds which certificate came from which source, so that a source that goes bad takes nothing
	// away, not even across a restart.
	AnnotationSources = "kubelet-ca-courier/sources"
)

// annotationPrefix is common to all annotations and labels of courier.
const annotationPrefix = "kubelet-ca-courier/"

// digestLength is how many hexadecimal digits of a node name's hash go into a key: 40 bits, so that 5,000 shortened names
// collide with a probability of about one in a hundred thousand; and if they do, the annotation tells them apart.
const digestLength = 10

// NodeKey returns a name for the node that is safe as a label value and as the name of a Job and of its pods.
// Node names have up to 253 characters and dots (RFC 1123 subdomain); label values, and with them the names of Jobs
// (k8s.io/kubernetes pkg/apis/batch/validation), have 63. Most names are their own key; the others are cut and get a hash.
func NodeKey(node string) string {
	if len(validation.IsDNS1123Label(node)) == 0 {
		return node
	}
	sum := sha256.Sum256([]byte(node))
	prefix := strings.ReplaceAll(node, ".", "-")
	if limit := validation.DNS1123LabelMaxLength - digestLength - 1; len(prefix) > limit {
		prefix = prefix[:limit]
	}
	return strings.TrimRight(prefix, "-") + "-" + hex.EncodeToString(sum[:])[:digestLength]
}

// shortHash is the part of a bundle's hash that goes into names and labels.
func shortHash(hash string) string {
	return hash[:min(16, len(hash))]
}

// shortSum is a hash for comparing, in names and annotations.
func shortSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
