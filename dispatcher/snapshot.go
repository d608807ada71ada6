package dispatcher

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/node"
)

// historyLimit is how many snapshots are kept, the current one included: enough to see what was delivered lately.
const historyLimit = 5

// lastSequence is the end of the year 9999. Beyond it a sequence is no time, and there might be none that is higher.
const lastSequence = 253402300799999

// Contributions says which certificates came from which source: fingerprints by [Ref.String].
type Contributions map[string][]string

// Snapshot is a bundle that was accepted for delivery. Its content never changes; only its place in the order does, when
// a bundle comes back that had been delivered before.
type Snapshot struct {
	// Name is the ConfigMap's name.
	Name string
	// Hash is the hexadecimal SHA-256 of PEM.
	Hash string
	// PEM is the canonical bundle.
	PEM []byte
	// Sequence orders snapshots; the highest is the current one. It is the time of acceptance in milliseconds, or one
	// more than the one before, or than that of any Job: the order survives clocks that go back, and the loss of all
	// snapshots.
	Sequence int64
	// Accepted is when it became the current one.
	Accepted time.Time
	// Contributions remembers what each source brought.
	Contributions Contributions
}

// Object returns the ConfigMap that stores the snapshot.
func (s Snapshot) Object(namespace string) (*corev1.ConfigMap, error) {
	sources, err := json.Marshal(s.Contributions)
	if err != nil {
		return nil, fmt.Errorf("encode the contributions: %w", err)
	}
	immutable := true
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      s.Name,
			Labels:    map[string]string{LabelManagedBy: ManagedBy, LabelBundle: shortHash(s.Hash)},
			Annotations: map[string]string{
				AnnotationSequence: strconv.FormatInt(s.Sequence, 10),
				AnnotationAccepted: s.Accepted.UTC().Format(time.RFC3339Nano),
				AnnotationSources:  string(sources),
			},
		},
		Immutable: &immutable,
		Data:      map[string]string{node.BundleKey: string(s.PEM)},
	}, nil
}

// ReadSnapshot reads a stored snapshot. One whose content is not what its name says is an error: it must not be
// delivered, and the next candidate must not be judged against it.
func ReadSnapshot(cm *corev1.ConfigMap) (Snapshot, error) {
	s := Snapshot{Name: cm.Name, PEM: []byte(cm.Data[node.BundleKey])}
	s.Hash = bundle.Hash(s.PEM)
	if s.Name != snapshotName(s.Hash) {
		return Snapshot{}, fmt.Errorf("snapshot %s does not hold what its name says", cm.Name)
	}
	if cm.Immutable == nil || !*cm.Immutable {
		return Snapshot{}, fmt.Errorf("snapshot %s is not immutable", cm.Name)
	}
	var err, seqErr, timeErr error
	s.Sequence, seqErr = strconv.ParseInt(cm.Annotations[AnnotationSequence], 10, 64)
	s.Accepted, timeErr = time.Parse(time.RFC3339Nano, cm.Annotations[AnnotationAccepted])
	err = json.Unmarshal([]byte(cm.Annotations[AnnotationSources]), &s.Contributions)
	if err = errors.Join(seqErr, timeErr, err); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %s: %w", cm.Name, err)
	}
	if s.Sequence > lastSequence {
		return Snapshot{}, fmt.Errorf("snapshot %s has a sequence that is no time", cm.Name)
	}
	return s, nil
}

// snapshotName is derived from the content alone.
func snapshotName(hash string) string { return SnapshotPrefix + shortHash(hash) }

// Current returns the snapshot to be delivered, or nil. Two with one sequence number, which only two dispatchers at once
// could write, are told apart by name, so that everyone picks the same.
func Current(snapshots []Snapshot) *Snapshot {
	if len(snapshots) == 0 {
		return nil
	}
	newest := slices.MaxFunc(snapshots, compareSnapshots)
	return &newest
}

// surplus returns the snapshots beyond the history.
func surplus(snapshots []Snapshot) []Snapshot {
	ordered := slices.SortedFunc(slices.Values(snapshots), compareSnapshots)
	return ordered[:max(0, len(ordered)-historyLimit)]
}

func compareSnapshots(a, b Snapshot) int {
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), strings.Compare(a.Name, b.Name))
}

// contributed returns the certificates that a source brought to the snapshot, as a bundle.
func (s *Snapshot) contributed(ref Ref) *bundle.Bundle {
	if s == nil {
		return nil
	}
	all, _ := bundle.Parse(s.PEM)
	part := &bundle.Bundle{}
	for _, certificate := range all.Certificates {
		if slices.Contains(s.Contributions[ref.String()], certificate.Fingerprint.String()) {
			part.Certificates = append(part.Certificates, certificate)
		}
	}
	if len(part.Certificates) == 0 {
		return nil
	}
	return part
}
