package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubelet-ca-courier/bundle"
)

// stdin is the name of standard input as a source.
const stdin = "-"

// defaultKey is the key of the bundle in most ConfigMaps with one.
const defaultKey = "ca-bundle.crt"

// source is where a bundle was read from.
type source struct {
	text []byte
	// object is the ConfigMap around the text, if there was one, and key the bundle's key in it.
	object *corev1.ConfigMap
	key    string
}

// read reads a source by its name.
func (o *checkOptions) read(ctx context.Context, name string) (*source, error) {
	kind, resource, live := strings.Cut(name, "/")
	if live && slices.Contains([]string{"configmap", "configmaps", "cm"}, kind) {
		return o.readLive(ctx, resource)
	}
	text, err := o.readFile(name)
	if err != nil {
		return nil, err
	}
	object, err := asConfigMap(text)
	if err != nil {
		return nil, withHint(fmt.Errorf("%s: %w", name, err), "it looks like YAML or JSON; a ConfigMap or PEM is needed")
	}
	if object == nil {
		return &source{text: text}, nil
	}
	return o.unwrap(object)
}

// readFile reads a file or standard input.
func (o *checkOptions) readFile(name string) ([]byte, error) {
	if name == stdin {
		text, err := io.ReadAll(o.streams.In)
		if err != nil {
			return nil, fmt.Errorf("reading standard input: %w", err)
		}
		return text, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, withHint(err, "name a file, - for standard input, or configmap/NAME for one in the cluster")
	}
	return text, nil
}

// readLive gets the ConfigMap from the cluster.
func (o *checkOptions) readLive(ctx context.Context, name string) (*source, error) {
	client, err := o.clientset()
	if err != nil {
		return nil, err
	}
	namespace, _, err := o.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	object, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, withHint(fmt.Errorf("getting the ConfigMap %s in namespace %s: %w", name, namespace, err),
			"--namespace names another namespace")
	}
	return o.unwrap(object)
}

// unwrap takes the bundle out of a ConfigMap.
func (o *checkOptions) unwrap(object *corev1.ConfigMap) (*source, error) {
	keys := slices.Concat(slices.Collect(maps.Keys(object.Data)), slices.Collect(maps.Keys(object.BinaryData)))
	key := o.key
	switch {
	case key != "":
	case len(keys) == 1:
		key = keys[0]
	default:
		key = defaultKey
	}
	text := object.BinaryData[key]
	if data, found := object.Data[key]; found {
		text = []byte(data)
	}
	if len(keys) > 1 && !slices.Contains(keys, key) {
		slices.Sort(keys)
		return nil, usageError(fmt.Sprintf("the ConfigMap has no key %s, but %s", key, strings.Join(keys, ", ")),
			"--key names the bundle's key")
	}
	return &source{text: text, object: object, key: key}, nil
}

// asObject is the source as a ConfigMap, wrapped into one if it came without.
func (s *source) asObject(key string) *corev1.ConfigMap {
	if s.object != nil {
		return s.object
	}
	return &corev1.ConfigMap{Data: map[string]string{key: string(s.text)}}
}

// allowing is the source's ConfigMap with more fingerprints in its break-glass annotation.
func (s *source) allowing(more bundle.Allowances) *corev1.ConfigMap {
	object := s.object.DeepCopy()
	if len(more) == 0 {
		return object
	}
	text := object.Annotations[bundle.AllowanceAnnotation]
	for f := range more {
		text += "," + f.String()
	}
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, bundle.AllowanceAnnotation, text)
	return object
}

// asConfigMap reads a ConfigMap from YAML or JSON. It is nil where the text does not look like an object at all.
func asConfigMap(text []byte) (*corev1.ConfigMap, error) {
	isObject := bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) ||
		bytes.Contains(text, []byte("apiVersion:")) && bytes.Contains(text, []byte("kind:"))
	if !isObject {
		return nil, nil //nolint:nilnil // not an object, and not a fault
	}
	object := &corev1.ConfigMap{}
	if err := yaml.Unmarshal(text, object); err != nil {
		return nil, fmt.Errorf("reading the object: %w", err)
	}
	if object.Kind != "ConfigMap" {
		return nil, errors.New("the object is not a ConfigMap but a " + object.Kind)
	}
	return object, nil
}
