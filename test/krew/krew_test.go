// Package krew_test has krew's own validator read the plugin's manifest. It is a module of its own, since krew depends on
// Kubernetes libraries of years ago.
package krew_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheManifestIsOneThatKrewTakes(t *testing.T) {
	manifest, err := os.ReadFile("../../cmd/kubectl-courier/krew.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, old, replacement string
		valid                  bool
	}{
		{"as it ships", "", "", true},
		{"without a sum, so that this test can fail", `sha256: "`, `sha256: "no sum `, false},
		{"without the program, so that this test can fail", "bin: kubectl-courier\n", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "courier.yaml") // krew wants it to be called like the plugin
			if err := os.WriteFile(file, []byte(strings.Replace(string(manifest), c.old, c.replacement, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("go", "tool", "validate-krew-manifest", "-manifest", file, "-skip-install").CombinedOutput()
			if c.valid != (err == nil) {
				t.Errorf("krew says %v, want valid %t:\n%s", err, c.valid, out)
			}
		})
	}
}
