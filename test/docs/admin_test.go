package docs_test

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// admin follows documents, with what a new admin has: a clone, kubectl, the plugin and a cluster.
type admin struct {
	*lab.Lab
	t *testing.T
	// home is a directory of the admin's own, clone a clone of this repository in it, and bin is on the PATH.
	home, clone, bin string
	windows          []string
	// registry is where images are pushed to.
	registry string
	// kustomization is what documents call COURIER: an overlay as it is, since this cluster pulls no images. The upgrade test has
	// one of an admin's own.
	kustomization string
	// ran are the commands of documents that were run.
	ran map[string]bool
}

// newAdmin brings up a cluster as planned.
func newAdmin(t *testing.T, plan lab.Plan) *admin {
	t.Helper()
	l, home := labtest.New(t, plan), t.TempDir()
	a := &admin{
		Lab: l, t: t, windows: plan.Windows,
		home: home, clone: filepath.Join(home, "kubelet-ca-courier"), bin: filepath.Join(home, "bin"),
		ran: map[string]bool{}, kustomization: "manifests/overlays/" + openshift.name,
	}
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(images.Close)
	a.registry = strings.TrimPrefix(images.URL, "http://")
	a.linkClone()
	return a
}

// in returns the admin as a subtest sees it.
func (a *admin) in(t *testing.T) *admin {
	inner := *a
	inner.t = t
	return &inner
}

// linkClone makes a directory that looks like a clone, so that what commands write does not end up in the real one.
func (a *admin) linkClone() {
	a.t.Helper()
	for _, dir := range []string{a.clone, a.bin} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			a.t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(a.Root)
	if err != nil {
		a.t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(a.Root, e.Name()), filepath.Join(a.clone, e.Name())); err != nil {
			a.t.Fatal(err)
		}
	}
}

// document returns the text of a document.
func (a *admin) document(name string) string {
	a.t.Helper()
	return string(labtest.Must[[]byte](a.t)(os.ReadFile(filepath.Join(a.Root, "docs", name))))
}

// section returns what a document says below a heading.
func (a *admin) section(document, heading string) string {
	a.t.Helper()
	_, text, found := strings.Cut(a.document(document), "\n## "+heading+"\n")
	if !found {
		a.t.Fatalf("%s has no section %q", document, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// blocks returns the fenced blocks of a language; an admin runs those of sh.
func (a *admin) blocks(text, language string) []string {
	a.t.Helper()
	var found []string
	for _, b := range fenced.FindAllStringSubmatch(text, -1) {
		if b[1] == language {
			found = append(found, b[2])
		}
	}
	if len(found) == 0 {
		a.t.Fatalf("there is no block of %s in\n%s", language, text)
	}
	return found
}

// follow runs the commands of a document.
func (a *admin) follow(document string) { a.followAllBut("", document) }

// followAllBut runs the commands of a document that ends with the given one, and leaves that one out.
func (a *admin) followAllBut(last, document string) {
	a.t.Helper()
	blocks := a.blocks(a.document(document), "sh")
	if last != "" {
		end := len(blocks) - 1
		if blocks[end] != last {
			a.t.Fatalf("%s ends with %q, not with %q", document, blocks[end], last)
		}
		blocks = blocks[:end]
	}
	for _, block := range blocks {
		a.sh(block)
	}
}

// followSections runs the commands of sections of a document.
func (a *admin) followSections(document string, headings ...string) {
	a.t.Helper()
	for _, heading := range headings {
		for _, block := range a.blocks(a.section(document, heading), "sh") {
			a.sh(block)
		}
	}
}

// followRest runs the commands of the wanted documents that were not run yet. Those in sentences name things in general.
func (a *admin) followRest(wanted func(document string) bool) {
	a.t.Helper()
	dotted := a.windows[len(a.windows)-1]
	names := strings.NewReplacer("NAMESPACE", lab.GuardedNamespace, "NAME", lab.GuardedName, "NODE", dotted, "JOB", a.job(dotted))
	for _, c := range a.notRun() {
		if !wanted(c.document) || a.ran[c.text] || c.text == takeOut {
			continue
		}
		text := c.text
		if c.prose {
			text = names.Replace(text)
		}
		a.t.Logf("%s: %s", c.document, text)
		a.sh(text)
		a.ran[c.text] = true
		if strings.Contains(text, "delete job") {
			a.sh("kubectl courier status --watch --timeout=10m")
		}
	}
}

// notRun returns the commands of the documents that were not run yet.
func (a *admin) notRun() []command {
	a.t.Helper()
	return slices.DeleteFunc(documentation(a.t, a.Root), func(c command) bool {
		_, isName := names[c.text]
		return isName || a.ran[c.text] || !onCluster(c) || c.document == clustersReadme
	})
}

// answers are what a command has to print, by a part of it, where its exit status says too little.
var answers = map[string]string{
	"! kubectl patch":   "NotPEM", // and no other refusal
	"auth can-i --list": "jobs.batch",
}

// findsNone are commands that name things in general, in the namespace that an admin is in.
var findsNone = map[string]struct{}{"kubectl describe job": {}, "kubectl describe pod": {}}

// sh runs commands as an admin's shell does, and stops at the first that fails; one that is to fail begins with "!".
func (a *admin) sh(script string) string {
	a.t.Helper()
	a.ran[script] = true
	out, err := a.try(a.t.Context(), strings.ReplaceAll(script, "--push "+registryOfDocuments, "--push "+a.registry))
	if err != nil {
		a.t.Fatalf("%v\n$ %s\n%s", err, script, out)
	}
	for part, answer := range answers {
		if strings.Contains(script, part) && !strings.Contains(out, answer) {
			a.t.Errorf("its answer lacks %q:\n$ %s\n%s", answer, script, out)
		}
	}
	if _, isNone := findsNone[strings.TrimSpace(script)]; !isNone && strings.Contains(out, "No resources found") {
		a.t.Errorf("it finds nothing:\n$ %s\n%s", script, out)
	}
	return out
}

// try is sh for commands that may fail.
func (a *admin) try(ctx context.Context, script string) (string, error) {
	for _, line := range strings.Split(script, "\n") {
		if rest, ok := strings.CutPrefix(line, "! "); ok {
			script = strings.Replace(script, line, "if "+rest+"; then echo 'this should have failed'; exit 1; fi", 1)
		}
	}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = a.clone
	cmd.Env = append(os.Environ(), "COURIER="+a.kustomization,
		"KUBECONFIG="+a.Kubeconfig(), "GOBIN="+a.bin, "PATH="+a.bin+":"+filepath.Join(a.Dir, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// write writes a file into a directory.
func (a *admin) write(dir, name, content string) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
}
