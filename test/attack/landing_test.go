package attack

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/bundle/bundletest"
	"kubelet-ca-courier/node"
)

// scene is a volume with a bundle, a directory for the destination, and a file that an attacker would like to have
// overwritten.
type scene struct {
	task   node.Task
	dir    string
	victim string
}

func newScene(t *testing.T) scene {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := scene{dir: filepath.Join(root, "k"), victim: filepath.Join(root, "victim")}
	parsed, findings := bundle.Parse(bundletest.Named(t, "new").PEM)
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	content := parsed.Canonical()
	sum := sha256.Sum256(content)
	s.task = node.Task{
		Source: filepath.Join(root, "ca-bundle.crt"), SHA256: hex.EncodeToString(sum[:]), Destination: filepath.Join(s.dir, "kubelet-ca.crt"),
	}
	must(t, os.Mkdir(s.dir, 0o700))
	must(t, os.WriteFile(s.task.Source, content, 0o600))
	must(t, os.WriteFile(s.victim, []byte("keep"), 0o600))
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s scene) land(t *testing.T) node.Result {
	t.Helper()
	return node.NewLander("", 50*time.Millisecond).Land(t.Context(), s.task)
}

func TestAPlantedLinkIsNeverFollowed(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(t *testing.T, s scene)
		want  node.ExitCode
	}{
		{"the destination is a link to a file", func(t *testing.T, s scene) { must(t, os.Symlink(s.victim, s.task.Destination)) }, node.ExitDestinationRefused},
		{"the destination is a link to nothing", func(t *testing.T, s scene) {
			must(t, os.Symlink(filepath.Join(s.dir, "nothing"), s.task.Destination))
		}, node.ExitDestinationRefused},
		{"the destination's directory is a link", func(t *testing.T, s scene) {
			must(t, os.Rename(s.dir, s.dir+"-real"))
			must(t, os.Symlink(s.dir+"-real", s.dir))
		}, node.ExitDestinationRefused},
		{"the destination is a directory", func(t *testing.T, s scene) { must(t, os.Mkdir(s.task.Destination, 0o700)) }, node.ExitDestinationRefused},
		{"what looks left over is a link", func(t *testing.T, s scene) {
			must(t, os.Symlink(s.victim, s.task.Destination+".courier-0000abcd"))
		}, node.ExitOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.plant(t, s)
			result := s.land(t)
			if result.Code != c.want {
				t.Errorf("exit code %d, want %d: %s", result.Code, c.want, result.Line(0))
			}
			if kept, err := os.ReadFile(s.victim); err != nil || string(kept) != "keep" {
				t.Errorf("the link's target holds %q now: %v", kept, err)
			}
		})
	}
}

func TestAnotherFileInTheVolumesPlaceIsNotLanded(t *testing.T) {
	s := newScene(t)
	must(t, os.WriteFile(s.task.Source, bundletest.Named(t, "attacker").PEM, 0o600))
	if result := s.land(t); result.Code != node.ExitSourceMismatch {
		t.Errorf("exit code %d, want %d", result.Code, node.ExitSourceMismatch)
	}
	if _, err := os.Stat(s.task.Destination); err == nil {
		t.Error("there is a file")
	}
}

func TestNoSubjectGetsIntoTheLandingsReportAsItIs(t *testing.T) {
	for _, subject := range subjects() {
		s := newScene(t)
		must(t, os.WriteFile(s.task.Destination, withSubject(t, subject, time.Time{}).PEM, 0o600))
		result := s.land(t)
		if result.Code != node.ExitOK || result.RemovedCount != 1 {
			t.Fatalf("%s", result.Line(0))
		}
		harmless(t, "the landing's report", string(result.Line(0)))
	}
}
