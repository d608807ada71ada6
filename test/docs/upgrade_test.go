package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/utils/ptr"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// registryOfDocuments is the one of the documents.
const registryOfDocuments = "registry.example.com"

// TestUpgradeAndRollbackInMidRollout changes from one build to another that really differs while a bundle is half delivered, and
// back while the next one is, by the kustomization of install/README.md with other tags. The build that is asked for is the
// one that runs; every node gets each bundle, and no file is replaced twice; the gate stays open.
func TestUpgradeAndRollbackInMidRollout(t *testing.T) {
	a := newAdmin(t, lab.Plan{Windows: []string{"win-1", "win-2", "win-3", "win-4", "win-5", "win-6"}, Signers: []string{"first"}})
	for _, r := range releases {
		a.builds(r)
	}
	old, next := releases[0], releases[1]
	a.apply(old)
	a.settled(labtest.Must[[]byte](t)(a.Publish(t.Context(), "first")))

	w := a.watchWrites()
	for _, step := range []struct {
		name     string
		from, to release
		signers  []string
	}{
		{"upgrade", old, next, []string{"first", "second"}},
		{"rollback", next, old, []string{"first", "second", "third"}},
	} {
		if !t.Run(step.name, func(t *testing.T) { a.in(t).changesInMidRollout(w, step.from, step.to, step.signers) }) {
			return
		}
	}
}

// changesInMidRollout publishes the signers, stops the rollout half-way, changes the release, lets the rollout go on, and
// checks who did what.
func (a *admin) changesInMidRollout(w *writes, from, to release, signers []string) {
	a.t.Helper()
	ctx := a.t.Context()
	w.reset()
	begin := labtest.Must[int64](a.t)(a.AuditLength())
	content := labtest.Must[[]byte](a.t)(a.Publish(ctx, signers...))
	before := a.stopsHalfWay(w, from, bundle.Hash(content))

	load, err := a.StartLoad(ctx, 1, 20*time.Millisecond)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = load.Stop() }) // stopped below, unless the test ends before
	a.apply(to)
	if err := load.Stop(); err != nil || load.Writes() == 0 {
		a.t.Errorf("the gate has not stayed open: %d writes, %v", load.Writes(), err)
	}
	a.hasWithdrawn(from)
	changed := labtest.Must[int64](a.t)(a.AuditLength())
	a.resume()
	after := a.settled(content)

	made := a.jobsMade(begin)
	for _, node := range a.windows {
		if n := w.count()[node]; n != 1 {
			a.t.Errorf("the file of %s was replaced %d times", node, n)
		}
		job, by := after[node], to
		if was, done := before[node]; done {
			by = from
			if was.UID != job.UID {
				a.t.Errorf("%s had its bundle, and has got another Job", node)
			}
		}
		if makers := made[node]; len(makers) == 0 || makers[len(makers)-1] != agentOf(by) {
			a.t.Errorf("the Jobs of %s were made by %v, the last not by %s", node, makers, by.version)
		}
		a.isOf(by, node, job)
	}
	for node, makers := range a.jobsMade(changed) {
		if slices.ContainsFunc(makers, func(agent string) bool { return agent != agentOf(to) }) {
			a.t.Errorf("after the change Jobs of %s were made by %v", node, makers)
		}
	}
	a.t.Logf("%d of %d nodes were done; the Jobs were made by %v; %d writes passed the gate meanwhile",
		len(before), len(a.windows), made, load.Writes())
}

// stopsHalfWay waits until some nodes have the bundle, freezes the others, and returns the Jobs of those that are done when
// the rollout stands still: some of the others are at work, some have not been begun.
func (a *admin) stopsHalfWay(w *writes, from release, hash string) map[string]batchv1.Job {
	a.t.Helper()
	labtest.Eventually(a.t, "two nodes have the bundle", func(context.Context) error {
		if n := len(w.count()); n < 2 {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	done := map[string]batchv1.Job{}
	for _, node := range a.windows {
		if w.count()[node] == 0 {
			labtest.Must[string](a.t)(a.Cluster(a.t.Context(), "pause", "node-"+node))
		} else {
			done[node] = batchv1.Job{}
		}
	}
	a.t.Cleanup(a.resume)
	labtest.Eventually(a.t, "the rollout stands still", func(ctx context.Context) error {
		jobs, err := a.Jobs(ctx)
		if err != nil {
			return err
		}
		atWork := 0
		for _, node := range a.windows {
			job := jobs[node]
			r := dispatcher.ReadRecord(&job)
			_, isDone := done[node]
			switch {
			case isDone && (r.Hash != hash || r.Phase != dispatcher.Succeeded):
				return fmt.Errorf("the Job of %s is %s", node, r.Phase)
			case r.Hash == hash && r.Phase == dispatcher.Succeeded: // those too that were so quick that freezing came after it
				done[node] = job
			case r.Hash == hash:
				atWork++
			}
		}
		if atWork != parallel {
			return fmt.Errorf("%d Jobs are at work", atWork)
		}
		return nil
	})
	if waiting := len(a.windows) - len(done) - parallel; waiting < 1 {
		a.t.Fatalf("%d of %d nodes were done before the rollout could be stopped", len(done), len(a.windows))
	}
	for node, job := range done {
		a.isOf(from, node, job)
	}
	return done
}

// hasWithdrawn waits until none of a release's Jobs is at work any more. A node that went on before the next release leads would be
// delivered to by the one before.
func (a *admin) hasWithdrawn(from release) {
	a.t.Helper()
	labtest.Eventually(a.t, "the Jobs of "+from.version+" that were at work are withdrawn", func(ctx context.Context) error {
		jobs, err := a.Jobs(ctx)
		for node, job := range jobs {
			if r := dispatcher.ReadRecord(&job); r.Phase == dispatcher.Live && !r.Deleting && *job.Spec.BackoffLimit == from.retries {
				return fmt.Errorf("that of %s is still at work", node)
			}
		}
		return err
	})
}

// resume lets frozen nodes go on; it does nothing to others.
func (a *admin) resume() {
	a.t.Helper()
	for _, node := range a.windows {
		if _, err := a.Cluster(context.WithoutCancel(a.t.Context()), "resume", "node-"+node); err != nil {
			a.t.Error(err)
		}
	}
}

// settled waits until every node holds the content, and returns the Jobs by node.
func (a *admin) settled(content []byte) map[string]batchv1.Job {
	a.t.Helper()
	var jobs map[string]batchv1.Job
	labtest.Eventually(a.t, "every node holds the bundle", func(ctx context.Context) (err error) {
		jobs, err = a.Delivered(ctx, content, a.windows...)
		return err
	})
	return jobs
}

// parallel is how many nodes are delivered to at a time.
const parallel = 2

// apply writes the kustomization of install/README.md with the release's tags, applies it as operate.md says, and waits until
// the manager of that release alone is there.
func (a *admin) apply(r release) {
	a.t.Helper()
	replace := func(text string, pairs ...string) string {
		for i := 0; i < len(pairs); i += 2 {
			if !strings.Contains(text, pairs[i]) {
				a.t.Fatalf("%q is not in\n%s", pairs[i], text)
			}
			text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
		}
		return text
	}
	config := string(labtest.Must[[]byte](a.t)(os.ReadFile(filepath.Join(a.Root, "manifests/overlays/openshift/config.yaml"))))
	a.write(a.home, "config.yaml", replace(config,
		"image: registry.invalid/kubelet-ca-courier/node:dev", "image: "+registryOfDocuments+"/kubelet-ca-courier/node:"+r.version,
		"maxParallel: 0", fmt.Sprint("maxParallel: ", parallel)))
	// In this cluster, cert-manager takes the place of the service CA, and there is no Prometheus operator.
	kustomization := a.blocks(a.section("install/README.md", "Images"), "yaml")[0]
	a.write(a.home, "kustomization.yaml", replace(kustomization,
		"components/monitoring", "components/cert-manager", "newTag: v1", "newTag: "+r.version))

	a.sh("kubectl apply -k ..")
	if err := a.AwaitInstalled(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
	labtest.Eventually(a.t, "the manager of "+r.version+" alone is there", func(ctx context.Context) error {
		versions, err := a.try(ctx, "kubectl get pods -n kubelet-ca-courier-system -o jsonpath='{range .items[*]}{.spec.containers[0].image}{\"\\n\"}{end}'")
		if image := registryOfDocuments + "/kubelet-ca-courier/manager:" + r.version + "\n"; err != nil || versions != image+image {
			return errors.Join(err, fmt.Errorf("pods run %q", versions))
		}
		said, err := a.try(ctx, "kubectl logs -n kubelet-ca-courier-system -l app.kubernetes.io/component=courier --tail=-1")
		if strings.Count(said, "version="+r.version) != 2 || strings.Count(said, "version=") != 2 {
			return errors.Join(err, fmt.Errorf("they say\n%s", said))
		}
		return err
	})
}

// agentOf is how the API server's audit log names a release's manager.
func agentOf(r release) string { return "kubelet-ca-courier/" + r.version }

// jobsMade returns, by node, who has made its Jobs since the audit log had that length.
func (a *admin) jobsMade(since int64) map[string][]string {
	a.t.Helper()
	made := map[string][]string{}
	for _, event := range labtest.Must[[]auditv1.Event](a.t)(a.Audit(since)) {
		if event.Verb == "create" && event.ObjectRef.Resource == "jobs" && event.ResponseStatus.Code < 300 {
			made[event.ObjectRef.Name] = append(made[event.ObjectRef.Name], event.UserAgent)
		}
	}
	return made
}

// isOf checks that a Job is as the release makes it, and that the release's landing ran in it.
func (a *admin) isOf(r release, node string, job batchv1.Job) {
	a.t.Helper()
	if retries := job.Spec.BackoffLimit; retries == nil || *retries != r.retries {
		a.t.Errorf("the Job of %s has the retries %d, want the %d of %s", node, ptr.Deref(retries, -1), r.retries, r.version)
	}
	said := a.sh("kubectl logs -n kubelet-ca-courier job/" + job.Name)
	if !strings.Contains(said, fmt.Sprintf("%q:%q", "meaning", r.meaning)) {
		a.t.Errorf("the landing on %s is not that of %s: %s", node, r.version, said)
	}
}
