package binaries

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module writes a Go module with one program and returns its directory.
func module(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module example.test/program\n\ngo 1.26\n", "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func store(t *testing.T) Store {
	t.Helper()
	source, err := FindSource()
	if err != nil {
		t.Fatal(err)
	}
	return Store{Source: source, Cache: t.TempDir(), Progress: NewProgress(&bytes.Buffer{}, false)}
}

func TestOwnProgramsAreBuiltAndReplaced(t *testing.T) {
	s, bin := store(t), t.TempDir()
	dir := module(t, "package main\n\nfunc main() { println(1) }\n")
	for range 2 {
		if err := s.BuildOwn(t.Context(), bin, Own{Name: "program", Module: dir, Package: "."}); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(bin, "program"))
	if err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("no program: %v", err)
	}
}

func TestABuildThatFailsSaysWhy(t *testing.T) {
	err := store(t).BuildOwn(t.Context(), t.TempDir(), Own{Name: "program", Module: module(t, "package main\n\nfunc main() { nonsense() }\n"), Package: "."})
	var failure *Failure
	if !errors.As(err, &failure) || !strings.Contains(err.Error(), "could not build program: ") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("error: %v", err)
	}
}

func TestProgramsAreTakenFromKubebuilderAssets(t *testing.T) {
	assets := t.TempDir()
	want := map[string]string{}
	for _, name := range ControlPlane {
		want[name] = filepath.Join(assets, name)
		if err := os.WriteFile(want[name], nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := store(t)
	t.Chdir(filepath.Dir(assets))
	for _, given := range []string{assets, filepath.Base(assets)} {
		t.Setenv("KUBEBUILDER_ASSETS", given)
		found, err := s.Ensure(t.Context(), ControlPlane...)
		if err != nil {
			t.Fatal(err)
		}
		for name, path := range want {
			if found[name] != path {
				t.Errorf("with %s: %s is taken from %s, want %s", given, name, found[name], path)
			}
		}
	}
}

func TestProgramsAreTakenFromTheCacheOnceBuilt(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", "")
	s := store(t)
	dir, err := s.Assets()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	found, err := s.Ensure(t.Context(), "kubectl")
	if err != nil || found["kubectl"] != filepath.Join(dir, "kubectl") {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestAProgramThatNobodyKnowsIsAnError(t *testing.T) {
	if _, err := store(t).Ensure(t.Context(), "emacs"); err == nil {
		t.Error("no error")
	}
}

func TestTheVersionIsThatOfTheModuleGraph(t *testing.T) {
	version, err := store(t).Version("k8s.io/kubernetes")
	if err != nil || !strings.HasPrefix(version, "v1.") {
		t.Errorf("version %q, %v", version, err)
	}
	if flags := linkerFlags("v1.37.2"); !strings.Contains(flags, "version.gitMinor=37") {
		t.Errorf("linker flags: %s", flags)
	}
}

func TestProgressNeverShowsMoreThanEverything(t *testing.T) {
	for _, test := range []struct {
		n, of int
		want  string
	}{{3, 0, "3"}, {3, 7, "3 of 7"}, {8, 7, "7 of 7"}} {
		if got := fraction(test.n, test.of); got != test.want {
			t.Errorf("fraction(%d, %d) = %q, want %q", test.n, test.of, got, test.want)
		}
	}
}
