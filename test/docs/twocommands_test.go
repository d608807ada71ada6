package docs_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubelet-ca-courier/hack/lab/labtest"
	"kubelet-ca-courier/test/need"
)

// TestTheDemoTellsItsStoryAndLeavesNothing runs the first of README's two commands, and what ends it, in a directory of its own.
func TestTheDemoTellsItsStoryAndLeavesNothing(t *testing.T) {
	need.ControlPlane(t)
	root := filepath.Clean(labtest.Must[string](t)(filepath.Abs("../..")))
	first := command{document: "README.md", text: "make demo"}
	if !slices.Contains(documentation(t, root), first) {
		t.Fatalf("README.md has no %q any more", first.text)
	}
	dir := filepath.Join(t.TempDir(), "demo")
	typed := func(target string) (string, error) {
		cmd := exec.Command("make", target, "DIR="+dir)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() { _, _ = typed("demo-down") }) // where the test has ended before
	out, err := typed("demo")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, wanted := range []string{"kubectl get jobs", "DropsValidCA", "make demo-down"} {
		if !strings.Contains(out, wanted) {
			t.Errorf("the story does not show %q:\n%s", wanted, out)
		}
	}
	if out, err := typed("demo-down"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	isGone(t, dir)
}

// TestTheLocalClustersCommandsWork follows the local cluster's own document.
func TestTheLocalClustersCommandsWork(t *testing.T) {
	need.ControlPlane(t)
	root := filepath.Clean(labtest.Must[string](t)(filepath.Abs("../..")))
	dir := filepath.Join(t.TempDir(), "cluster")
	typed := func(script string) (string, error) {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "COURIER_CLUSTER_DIR="+dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() { _, _ = typed("go run -C hack/cluster . down") })
	ran := 0
	for _, c := range documentation(t, root) {
		if c.document != clustersReadme || !onCluster(c) {
			continue
		}
		ran++
		out, err := typed(c.text)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, process := range []string{"kube-apiserver", "node-win-3", "node-linux-1"} {
			if !strings.Contains(out, process) {
				t.Errorf("status does not show %s:\n%s", process, out)
			}
		}
	}
	if ran != 1 {
		t.Errorf("%s has %d blocks to run, want one", clustersReadme, ran)
	}
	isGone(t, dir)
}

// isGone expects that neither the cluster's directory nor a process that works in it is left.
func isGone(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	for _, file := range labtest.Must[[]string](t)(filepath.Glob("/proc/[0-9]*/cmdline")) {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), dir) {
			t.Errorf("still running: %q", text)
		}
	}
}
