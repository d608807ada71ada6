package docs_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/test/need"
)

// TestUpgradeAndRollbackInMidRollout changes the manager's version while a bundle is on its way, and back while the next one is:
// every node gets each bundle, by one Job.
func TestUpgradeAndRollbackInMidRollout(t *testing.T) {
	need.ControlPlane(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a := newAdmin(ctx, t)
	if err := a.Install(ctx); err != nil {
		t.Fatal(err)
	}
	a.sh("kubectl rollout status -n kubelet-ca-courier-system deployment/courier --timeout=5m")
	a.settle()

	for i, step := range []struct{ name, change string }{
		{"second", "kubectl set image -n kubelet-ca-courier-system deployment/courier courier=kubelet-ca-courier/manager:next"},
		{"third", "kubectl rollout undo -n kubelet-ca-courier-system deployment/courier"},
	} {
		if err := a.Signer(ctx, step.name); err != nil {
			t.Fatal(err)
		}
		signers := append([]string{"signer", "bundle", "first"}, []string{"second", "third"}[:i+1]...)
		seen := a.auditLength()
		a.must(a.PatchGuarded(ctx, a.must(a.Cluster(ctx, signers...))))
		a.sh(step.change)
		a.sh("kubectl rollout status -n kubelet-ca-courier-system deployment/courier --timeout=5m")
		a.settle()
		created := a.jobsCreatedSince(seen)
		for _, node := range windowsNodes {
			if created[node] != 1 {
				t.Errorf("with the bundle of the %s signer, %d Jobs were created for %s, want 1", step.name, created[node], node)
			}
		}
	}
}

// settle waits until every node holds the bundle.
func (a *admin) settle() {
	a.t.Helper()
	deadline, cancel := context.WithTimeout(a.ctx, patience/4)
	defer cancel()
	for a.must(a.Kubectl(deadline, "get", "jobs", "-n", lab.JobsNamespace, "-o", "jsonpath={range .items[*]}{.status.succeeded}{end}")) !=
		strings.Repeat("1", len(windowsNodes)) || !a.sameEverywhere() {
		if deadline.Err() != nil {
			a.t.Fatal("the nodes do not all get the bundle")
		}
	}
}

// sameEverywhere says whether every node's file is the snapshot of the newest Jobs.
func (a *admin) sameEverywhere() bool {
	guarded := a.must(a.Kubectl(a.ctx, "get", "configmap", "-n", lab.GuardedNamespace, lab.GuardedName,
		`-o=jsonpath={.data.ca-bundle\.crt}`))
	for _, data := range a.files("k", "kubelet-ca.crt") {
		if strings.Count(string(data), "BEGIN") != strings.Count(guarded, "BEGIN") {
			return false
		}
	}
	return true
}

// auditFile is kube-apiserver's audit log.
func (a *admin) auditFile() *os.File {
	a.t.Helper()
	file, err := os.Open(filepath.Join(a.Dir, "logs", "audit.log"))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = file.Close() }) // only read
	return file
}

// auditLength is how much of the audit log there is by now.
func (a *admin) auditLength() int64 {
	a.t.Helper()
	info, err := a.auditFile().Stat()
	if err != nil {
		a.t.Fatal(err)
	}
	return info.Size()
}

// jobsCreatedSince counts the Jobs that were created from a place in the audit log on, by name.
func (a *admin) jobsCreatedSince(offset int64) map[string]int {
	a.t.Helper()
	file := a.auditFile()
	if _, err := file.Seek(offset, 0); err != nil {
		a.t.Fatal(err)
	}
	created := map[string]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event struct {
			Stage, Verb    string
			ObjectRef      struct{ Resource, Subresource, Name string }
			ResponseStatus struct{ Code int }
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue // the line that the offset or the end cut in two
		}
		if event.Stage == "ResponseComplete" && event.Verb == "create" && event.ObjectRef.Resource == "jobs" &&
			event.ObjectRef.Subresource == "" && event.ResponseStatus.Code == 201 {
			created[event.ObjectRef.Name]++
		}
	}
	if err := lines.Err(); err != nil {
		a.t.Fatal(err)
	}
	return created
}
