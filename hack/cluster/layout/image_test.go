package layout

import (
	"os"
	"path/filepath"
	"testing"
)

func TestImagesAreKnownByNameFromAnyRegistryAndWithAnyTag(t *testing.T) {
	for reference, want := range map[string]Image{
		"kubelet-ca-courier/node:dev":                             {"kubelet-ca-courier/node", "dev", "courier-node.exe"},
		"kubelet-ca-courier/node":                                 {"kubelet-ca-courier/node", "", "courier-node.exe"},
		"registry.example:5000/kubelet-ca-courier/manager":        {"kubelet-ca-courier/manager", "", "courier"},
		"example.com/kubelet-ca-courier/manager:v1@sha256:abcdef": {"kubelet-ca-courier/manager", "v1", "courier"},
		"kubelet-ca-courier/other:dev":                            {},
		"not-kubelet-ca-courier/node:dev":                         {},
		"example.com/elsewhere/node":                              {},
	} {
		got, known := ParseImage(reference)
		if got != want || known != (want != Image{}) {
			t.Errorf("%s is %+v, known: %t; want %+v", reference, got, known, want)
		}
	}
}

func TestATagRunsItsOwnProgramAndEveryOtherTheBuildOfThisRepository(t *testing.T) {
	c := Cluster{Dir: t.TempDir()}
	next := filepath.Join(c.Dir, "images", "kubelet-ca-courier", "node", "next")
	if err := os.MkdirAll(next, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(next, "courier-node"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		reference string
		windows   bool
		program   string
		there     bool
	}{
		{"kubelet-ca-courier/node:dev", true, c.Bin("courier-node.exe"), true},
		{"kubelet-ca-courier/node:dev", false, c.Bin("courier-node"), true},
		{"kubelet-ca-courier/node", false, c.Bin("courier-node"), true},
		{"kubelet-ca-courier/manager:next", false, c.Bin("courier"), true},
		{"example.com/kubelet-ca-courier/node:next", false, filepath.Join(next, "courier-node"), true},
		{"example.com/kubelet-ca-courier/node:next", true, filepath.Join(next, "courier-node.exe"), false},
	} {
		image, _ := ParseImage(test.reference)
		if program, there := c.ImageProgram(image, test.windows); program != test.program || there != test.there {
			t.Errorf("%s, for Windows %t: %s, there: %t; want %s, %t", test.reference, test.windows, program, there, test.program, test.there)
		}
	}
}
