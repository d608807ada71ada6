package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelet-ca-courier/hack/cluster/binaries"
	"kubelet-ca-courier/hack/cluster/process"
)

// leaveOut skips the test for want of something, or fails it where every test is required, and notes it for `make test`.
func leaveOut(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("COURIER_REQUIRE_ALL") == "1" {
		t.Fatalf("left out, and COURIER_REQUIRE_ALL=1 requires every test: %s", reason)
	}
	if name := os.Getenv("COURIER_LEFT_OUT"); name != "" {
		file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		fmt.Fprintf(file, "%s: %s\n", t.Name(), reason)
	}
	t.Skip("left out: " + reason)
}

// must runs a command that has to succeed.
func must(t *testing.T, dir string, args ...string) string {
	t.Helper()
	status, stdout, stderr := run(t, append(args, "--dir", dir)...)
	if status != 0 {
		t.Fatalf("%s: status %d\n%s", strings.Join(args, " "), status, stderr)
	}
	return stdout
}

// states returns the state of each process.
func states(t *testing.T, dir string) map[string]string {
	t.Helper()
	var r report
	if err := json.Unmarshal([]byte(must(t, dir, "status", "-o", "json")), &r); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, p := range r.Processes {
		all[p.Name] = p.State
	}
	return all
}

func TestAClusterIsBroughtUpBrokenMendedAndLeavesNothing(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		leaveOut(t, "needs KUBEBUILDER_ASSETS; `go run -C hack/cluster . assets` builds what it is to name, and prints it")
	}
	dir := filepath.Join(t.TempDir(), "cluster")
	table := process.Table{Dir: dir}
	t.Cleanup(func() { table.Sweep() })
	cutShort(t, dir)
	must(t, dir, "up")
	must(t, dir, "add-node", "win-1", "--program", "native")
	must(t, dir, "add-node", "win-1", "--program", "native") // what is there stays

	if got := must(t, dir, "ask", "win-1"); got != "200 OK: ok\n" {
		t.Errorf("with the signer that the node knows: %q", got)
	}
	must(t, dir, "signer", "new", "second")
	if got := must(t, dir, "ask", "win-1", "--signer", "second"); got != "401 Unauthorized: Unauthorized\n" {
		t.Errorf("with a signer that the node does not know: %q", got)
	}

	must(t, dir, "pause", "kube-scheduler")
	must(t, dir, "kill", "kube-controller-manager")
	if got := states(t, dir); got["kube-scheduler"] != "paused" || got["kube-controller-manager"] != "gone" || got["etcd"] != "running" {
		t.Errorf("states: %v", got)
	}
	must(t, dir, "resume", "kube-scheduler")
	must(t, dir, "up")
	must(t, dir, "resign-client", "second", "--restart")
	for name, state := range states(t, dir) {
		if state != "running" {
			t.Errorf("%s is %s", name, state)
		}
	}

	must(t, dir, "down")
	if _, err := os.Stat(dir); err == nil {
		t.Error("files are left")
	}
	if n := table.Sweep(); n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

// cutShort leaves what an `up` leaves that was interrupted early on, and a link to a program that has gone.
func cutShort(t *testing.T, dir string) {
	t.Helper()
	cache, err := binaries.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	c, err := allocate(cache, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"bin", "pki"} {
		if err := os.MkdirAll(c.Path(sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(c.PKI("ca.crt"), nil, 0o600), os.Symlink("/nowhere", c.Bin("etcd"))); err != nil {
		t.Fatal(err)
	}
}
