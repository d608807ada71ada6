package simulate

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// environment resolves a container's environment variables as the kubelet does (k8s.io/kubernetes
// pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables). It reads the ConfigMaps and Secrets by name, since that is
// all that the Node authorizer lets a node do.
func environment(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, c *corev1.Container) (map[string]string, error) {
	env := map[string]string{}
	for _, from := range c.EnvFrom {
		data, err := envFrom(ctx, client, pod.Namespace, from)
		if err != nil {
			return nil, err
		}
		for key, value := range data {
			env[from.Prefix+key] = value
		}
	}
	for _, v := range c.Env {
		value, ok := expansion.Expand(v.Value, expansion.MappingFuncFor(env)), true
		if v.ValueFrom != nil {
			var err error
			if value, ok, err = envValue(ctx, client, pod, c, v.ValueFrom); err != nil {
				return nil, fmt.Errorf("variable %s: %w", v.Name, err)
			}
		}
		if ok {
			env[v.Name] = value
		}
	}
	return env, nil
}

func envFrom(ctx context.Context, client kubernetes.Interface, namespace string, from corev1.EnvFromSource) (map[string]string, error) {
	switch {
	case from.ConfigMapRef != nil:
		return configMapData(ctx, client, namespace, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
	case from.SecretRef != nil:
		return secretData(ctx, client, namespace, from.SecretRef.Name, from.SecretRef.Optional)
	}
	return nil, nil
}

// envValue returns false for an optional value that is not there.
func envValue(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, c *corev1.Container, from *corev1.EnvVarSource) (string, bool, error) {
	var data map[string]string
	var err error
	var key string
	var optional *bool
	switch {
	case from.FieldRef != nil:
		value, err := podField(pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err := resource.ExtractContainerResourceValue(from.ResourceFieldRef, c)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		key, optional = from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional
		data, err = configMapData(ctx, client, pod.Namespace, from.ConfigMapKeyRef.Name, optional)
	case from.SecretKeyRef != nil:
		key, optional = from.SecretKeyRef.Key, from.SecretKeyRef.Optional
		data, err = secretData(ctx, client, pod.Namespace, from.SecretKeyRef.Name, optional)
	default:
		return "", false, fmt.Errorf("its source is not simulated")
	}
	if err != nil {
		return "", false, err
	}
	value, ok := data[key]
	if !ok && (optional == nil || !*optional) {
		return "", false, fmt.Errorf("there is no key %s", key)
	}
	return value, ok, nil
}

// podField resolves the downward API; the fields that are not of the object alone are those that the kubelet adds.
func podField(pod *corev1.Pod, path string) (string, error) {
	switch path {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return pod.Status.HostIP, nil
	case "status.podIP", "status.podIPs":
		return pod.Status.PodIP, nil
	}
	return fieldpath.ExtractFieldPathAsString(pod, path)
}

func configMapData(ctx context.Context, client kubernetes.Interface, namespace, name string, optional *bool) (map[string]string, error) {
	cm, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return cm.Data, nil
}

func secretData(ctx context.Context, client kubernetes.Interface, namespace, name string, optional *bool) (map[string]string, error) {
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data := map[string]string{}
	for key, value := range secret.Data {
		data[key] = string(value)
	}
	return data, nil
}

// commandLine is the container's command and arguments with $(VARIABLES) expanded. A container without a command runs
// what its image says, which is entrypoint.
func commandLine(c *corev1.Container, entrypoint string, env map[string]string) []string {
	line := []string{entrypoint}
	if len(c.Command) > 0 {
		line = slices.Clone(c.Command)
	}
	line = append(line, c.Args...)
	for i := range line {
		line[i] = expansion.Expand(line[i], expansion.MappingFuncFor(env))
	}
	return line
}

// assignments turns the variables into the form that programs are started with, in a stable order.
func assignments(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}
