// Package need says what a test asks of the machine it runs on.
//
// A test that lacks something is skipped and the reason is written down, so that `make test` can name at its end what
// was left out. With COURIER_REQUIRE_ALL=1, as in continuous integration, the same lack is a failure.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Environment variables that the package reads.
const (
	// RequireAll, set to 1, turns every left-out test into a failure.
	RequireAll = "COURIER_REQUIRE_ALL"
	// LeftOutFile names a file to which each left-out test is appended, one a line.
	LeftOutFile = "COURIER_LEFT_OUT"
	// Assets names the directory that holds etcd, kube-apiserver and the other programs of a control plane.
	Assets = "KUBEBUILDER_ASSETS"
)

// LeaveOut ends the test because the machine lacks something: as skipped, or as failed where everything is required.
func LeaveOut(t testing.TB, format string, args ...any) {
	t.Helper()
	reason := fmt.Sprintf(format, args...)
	if os.Getenv(RequireAll) == "1" {
		t.Fatalf("left out, and %s=1 requires every test: %s", RequireAll, reason)
	}
	if name := os.Getenv(LeftOutFile); name != "" {
		note(t, name, t.Name()+": "+reason)
	}
	t.Skip("left out: " + reason)
}

// note appends one line to the file.
func note(t testing.TB, name, line string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatalf("noting a left-out test: %v", err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Errorf("noting a left-out test: %v", err)
		}
	}()
	if _, err := fmt.Fprintln(f, line); err != nil {
		t.Fatalf("noting a left-out test: %v", err)
	}
}

// Root leaves the test out for a user who is not root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		LeaveOut(t, "needs root")
	}
}

// Tool returns the path of a program, or leaves the test out and names the Debian package that has it.
func Tool(t testing.TB, name, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		LeaveOut(t, "needs the program %s (Debian package %s)", name, debianPackage)
	}
	return path
}

// Wine returns the path of a Wine loader that runs windows/amd64 programs.
func Wine(t testing.TB) string {
	t.Helper()
	for _, path := range []string{"wine64", "/usr/lib/wine/wine64"} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	LeaveOut(t, "needs Wine for windows/amd64 (Debian packages wine and wine64)")
	return ""
}

// ControlPlane returns the directory with the programs of a real control plane, etcd and kube-apiserver among them: the
// one that KUBEBUILDER_ASSETS names. `make test` sets it; by hand, `go run -C hack/cluster . assets` prints it.
func ControlPlane(t testing.TB) string {
	t.Helper()
	dir := os.Getenv(Assets)
	if dir == "" {
		LeaveOut(t, "needs %s to name a directory with etcd and kube-apiserver; `go run -C hack/cluster . assets` builds one and prints it", Assets)
	}
	for _, program := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			LeaveOut(t, "%s has no %s", dir, program)
		}
	}
	return dir
}
