package dispatcher

import (
	"maps"
	"slices"
	"strings"
	"unique"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CacheOptions limit the manager's cache to what the dispatcher needs: Windows nodes, and Jobs and snapshots in the Jobs'
// namespace, each cut down to the fields that are read. Nothing else can be read through it by mistake.
func CacheOptions(jobs string) cache.Options {
	inJobs := map[string]cache.Config{jobs: {}}
	return cache.Options{
		ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}: {
				Label:     labels.SelectorFromSet(windowsLabels),
				Transform: trimNode,
			},
			&batchv1.Job{}: {Namespaces: inJobs, Transform: trimJob},
			&corev1.ConfigMap{}: {
				Namespaces: inJobs,
				Label:      labels.SelectorFromSet(labels.Set{LabelManagedBy: ManagedBy}),
				Transform:  cache.TransformStripManagedFields(),
			},
		},
	}
}

// trimNode keeps what [ReadNode] reads.
func trimNode(object any) (any, error) {
	full, ok := object.(*corev1.Node)
	if !ok {
		return object, nil // a tombstone
	}
	trimmed := &corev1.Node{ObjectMeta: trimMeta(&full.ObjectMeta)}
	trimmed.Labels = interned(full.Labels, func(key string) bool { return key != corev1.LabelHostname })
	trimmed.Status.NodeInfo.BootID = full.Status.NodeInfo.BootID
	for _, condition := range full.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: condition.Status}}
		}
	}
	return trimmed, nil
}

// trimJob keeps what [ReadRecord] reads.
func trimJob(object any) (any, error) {
	full, ok := object.(*batchv1.Job)
	if !ok {
		return object, nil // a tombstone
	}
	trimmed := &batchv1.Job{ObjectMeta: trimMeta(&full.ObjectMeta)}
	if mode, ok := full.Labels[LabelMode]; ok {
		trimmed.Labels = map[string]string{LabelMode: mode}
	}
	trimmed.Annotations = maps.Clone(full.Annotations)
	maps.DeleteFunc(trimmed.Annotations, func(key, _ string) bool { return !strings.HasPrefix(key, annotationPrefix) })
	trimmed.Annotations = interned(trimmed.Annotations, func(key string) bool {
		return key != AnnotationNodeName && key != AnnotationBootID
	})
	trimmed.OwnerReferences = full.OwnerReferences
	for _, condition := range full.Status.Conditions {
		switch condition.Type {
		case batchv1.JobComplete:
			condition.Reason, condition.Message = "", ""
		case batchv1.JobFailed:
		default:
			continue
		}
		trimmed.Status.Conditions = append(trimmed.Status.Conditions, condition)
	}
	trimmed.Status.Conditions = slices.Clip(trimmed.Status.Conditions)
	return trimmed, nil
}

func trimMeta(full *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:              full.Name,
		Namespace:         full.Namespace,
		UID:               full.UID,
		ResourceVersion:   full.ResourceVersion,
		CreationTimestamp: full.CreationTimestamp,
		DeletionTimestamp: full.DeletionTimestamp,
	}
}

// interned holds each key once for all objects, and each value that many of them have in common.
func interned(m map[string]string, common func(key string) bool) map[string]string {
	out := make(map[string]string, len(m))
	for key, value := range m {
		if common(key) {
			value = unique.Make(value).Value()
		}
		out[unique.Make(key).Value()] = value
	}
	return out
}
