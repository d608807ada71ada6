package decade

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAPlantedFaultIsCaught changes one rule of the gate, the dispatcher and the landing each, in a copy that only the
// compiler sees, and lives through one history with it: the promise that it breaks is named.
func TestAPlantedFaultIsCaught(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range []struct{ name, file, rule, instead, promise string }{
		{
			"the gate refuses to let expired CAs go", "bundle/review.go",
			"len(gone.Unusable(r.now)) == 0 && gone.X509.NotAfter.After(r.now.Add(ClockSkew))", "true", rightWriteRefused,
		},
		{
			"the dispatcher takes any bundle for the current one", "dispatcher/decide.go",
			"job.Hash != t.Snapshot.Hash || ", "", lockedOut,
		},
		{
			"the landing takes any well-formed file for the right one", "node/land.go",
			"l.heldFine && bundle.SameSet(l.held, l.bundle)", "l.heldFine", lockedOut, // it reads back what it never wrote, and fails
		},
	} {
		t.Run(fault.name, func(t *testing.T) {
			overlay := plant(t, filepath.Join(root, fault.file), fault.rule, fault.instead)
			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, ".",
				"-run", "TestDecadesPass", "-first", "3", "-seeds", "1", "-years", "2", "-told", "10")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "BROKEN: "+fault.promise) {
				t.Errorf("it is not caught as %q: %v\n%s", fault.promise, err, out)
			}
		})
	}
}

// plant writes the changed copy and the overlay that puts it in the file's place.
func plant(t *testing.T, file, rule, instead string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), rule) != 1 {
		t.Fatalf("%s has the rule %q not once: change this test with it", file, rule)
	}
	dir := t.TempDir()
	copied, overlay := filepath.Join(dir, filepath.Base(file)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: copied}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{copied: []byte(strings.Replace(string(text), rule, instead, 1)), overlay: replace} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}
