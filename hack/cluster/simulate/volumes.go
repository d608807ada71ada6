package simulate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/volume/configmap"
	"k8s.io/kubernetes/pkg/volume/secret"
	"k8s.io/kubernetes/pkg/volume/util"
)

// refreshEvery is how often volumes follow their ConfigMaps and Secrets. The kubelet takes up to a minute; tests wait
// for it, so the simulated node is quicker.
const refreshEvery = time.Second

// volumes are a pod's volumes on the node's disk, laid out by the kubelet's own AtomicWriter: files are links into
// ..data, itself a link that is replaced at once.
type volumes struct {
	client kubernetes.Interface
	pod    *corev1.Pod
	dir    string // <dir>/<volume name>
	tokens map[string]token
}

type token struct {
	value []byte
	renew time.Time
}

// path is the directory of a volume.
func (v *volumes) path(name string) string { return filepath.Join(v.dir, name) }

// write brings every volume up to date.
func (v *volumes) write(ctx context.Context) error {
	var errs []error
	for _, volume := range v.pod.Spec.Volumes {
		if err := v.writeOne(ctx, volume); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", volume.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (v *volumes) writeOne(ctx context.Context, volume corev1.Volume) error {
	dir := v.path(volume.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	payload := map[string]util.FileProjection{}
	var err error
	switch {
	case volume.EmptyDir != nil:
		return nil
	case volume.ConfigMap != nil:
		s := volume.ConfigMap
		err = v.configMap(ctx, payload, s.Name, s.Items, s.DefaultMode, s.Optional)
	case volume.Secret != nil:
		s := volume.Secret
		err = v.secret(ctx, payload, s.SecretName, s.Items, s.DefaultMode, s.Optional)
	case volume.DownwardAPI != nil:
		err = v.downward(payload, volume.DownwardAPI.Items)
	case volume.Projected != nil:
		for _, source := range volume.Projected.Sources {
			err = errors.Join(err, v.project(ctx, payload, volume.Name, source, volume.Projected.DefaultMode))
		}
	default:
		return errors.New("its kind is not simulated")
	}
	if err != nil {
		return err
	}
	writer, err := util.NewAtomicWriter(dir, v.pod.Name)
	if err != nil {
		return err
	}
	return writer.Write(payload, nil)
}

func (v *volumes) project(ctx context.Context, payload map[string]util.FileProjection, volume string, s corev1.VolumeProjection, mode *int32) error {
	switch {
	case s.ConfigMap != nil:
		return v.configMap(ctx, payload, s.ConfigMap.Name, s.ConfigMap.Items, mode, s.ConfigMap.Optional)
	case s.Secret != nil:
		return v.secret(ctx, payload, s.Secret.Name, s.Secret.Items, mode, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return v.downward(payload, s.DownwardAPI.Items)
	case s.ServiceAccountToken != nil:
		return v.token(ctx, payload, volume, s.ServiceAccountToken)
	}
	return errors.New("its source is not simulated")
}

func (v *volumes) configMap(ctx context.Context, payload map[string]util.FileProjection, name string, items []corev1.KeyToPath, mode *int32, optional *bool) error {
	cm, err := v.client.CoreV1().ConfigMaps(v.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if missing := apierrors.IsNotFound(err); missing && isTrue(optional) {
		cm = &corev1.ConfigMap{}
	} else if err != nil {
		return err
	}
	files, err := configmap.MakePayload(items, cm, mode, nil, isTrue(optional))
	return merge(payload, files, err)
}

func (v *volumes) secret(ctx context.Context, payload map[string]util.FileProjection, name string, items []corev1.KeyToPath, mode *int32, optional *bool) error {
	object, err := v.client.CoreV1().Secrets(v.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if missing := apierrors.IsNotFound(err); missing && isTrue(optional) {
		object = &corev1.Secret{}
	} else if err != nil {
		return err
	}
	files, err := secret.MakePayload(items, object, mode, nil, isTrue(optional))
	return merge(payload, files, err)
}

func (v *volumes) downward(payload map[string]util.FileProjection, items []corev1.DownwardAPIVolumeFile) error {
	for _, item := range items {
		if item.FieldRef == nil {
			return errors.New("resource fields are not simulated")
		}
		value, err := podField(v.pod, item.FieldRef.FieldPath)
		if err != nil {
			return err
		}
		payload[item.Path] = util.FileProjection{Data: []byte(value), Mode: 0o644}
	}
	return nil
}

// token requests a token for the pod's service account, and a new one when four fifths of its time are over, as the
// kubelet does (k8s.io/kubernetes pkg/kubelet/token/token_manager.go).
func (v *volumes) token(ctx context.Context, payload map[string]util.FileProjection, volume string, s *corev1.ServiceAccountTokenProjection) error {
	key := volume + "/" + s.Path
	if t, ok := v.tokens[key]; !ok || time.Now().After(t.renew) {
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: s.ExpirationSeconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: v.pod.Name, UID: v.pod.UID},
		}}
		if s.Audience != "" {
			request.Spec.Audiences = []string{s.Audience}
		}
		response, err := v.client.CoreV1().ServiceAccounts(v.pod.Namespace).CreateToken(ctx, v.pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		lifetime := time.Until(response.Status.ExpirationTimestamp.Time)
		v.tokens[key] = token{[]byte(response.Status.Token), time.Now().Add(lifetime * 4 / 5)}
	}
	payload[s.Path] = util.FileProjection{Data: v.tokens[key].value, Mode: 0o600}
	return nil
}

func merge(payload, files map[string]util.FileProjection, err error) error {
	for name, file := range files {
		payload[name] = file
	}
	return err
}

func isTrue(b *bool) bool { return b != nil && *b }
