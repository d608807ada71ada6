// Package manifests_test holds the tests of what an admin applies: that the overlays say the same thing everywhere, that the
// accounts have the rights that they need and no more, and that nothing but the landing runs in the Jobs' namespace.
package manifests_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// manifestsDir is where the manifests are, seen from this package.
const manifestsDir = "../../manifests"

// overlays returns the names of the overlays that ship.
func overlays(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(manifestsDir, "overlays"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) < 3 {
		t.Fatalf("found the overlays %v, want three or more", names)
	}
	return names
}

// render builds a kustomization as `kubectl kustomize` does.
func render(t *testing.T, dir string) []*unstructured.Unstructured {
	t.Helper()
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("rendering %s: %v", dir, err)
	}
	out, err := result.AsYaml()
	if err != nil {
		t.Fatalf("rendering %s: %v", dir, err)
	}
	return decode(t, out)
}

// decode reads YAML documents.
func decode(t *testing.T, data []byte) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, u)
	}
}

// overlay renders one of the overlays.
func overlay(t *testing.T, name string) []*unstructured.Unstructured {
	t.Helper()
	return render(t, filepath.Join(manifestsDir, "overlays", name))
}

// find returns the one object of that kind and name as its type.
func find[T any](t *testing.T, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	for _, u := range objects {
		if u.GetKind() == kind && u.GetName() == name {
			typed := new(T)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, typed, true); err != nil {
				t.Fatalf("%s %s: %v", kind, name, err)
			}
			return typed
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}
