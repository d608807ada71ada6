package docs_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"kubelet-ca-courier/hack/build"
	"kubelet-ca-courier/hack/lab/labtest"
)

// release is a build of both programs, under a tag of its own in the local cluster.
type release struct {
	version string
	// retries is what its Jobs say of themselves, and meaning what its landing says of a file that is right.
	retries int32
	meaning string
	// changes are what differs from the code at hand: by file, what is there and what takes its place.
	changes map[string][2]string
}

// releases are two builds that differ in what they call themselves and in what they do. Jobs with another number of retries
// are other Jobs to the dispatcher.
var releases = []release{
	{version: "v1", retries: 3, meaning: "the file is right"},
	{version: "v2", retries: 2, meaning: "the file is right, says the next release", changes: map[string][2]string{
		"dispatcher/job.go": {"podRetries = 3", "podRetries = 2"},
		"node/exitcode.go":  {`"the file is right"`, `"the file is right, says the next release"`},
	}},
}

// builds compiles the release's programs and gives them to the local cluster as images.
func (a *admin) builds(r release) {
	a.t.Helper()
	ctx, dir := a.t.Context(), a.t.TempDir()
	options := []build.Option{build.Version(r.version)}
	if len(r.changes) > 0 {
		options = append(options, build.Overlay(a.plant(dir, r.changes)))
	}
	manager, landing := filepath.Join(dir, "courier"), filepath.Join(dir, "courier-node")
	if err := build.Program(ctx, a.Root, "courier", "linux", runtime.GOARCH, manager, options...); err != nil {
		a.t.Fatal(err)
	}
	goos, goarch := "linux", runtime.GOARCH
	if a.runsWine() {
		goos, goarch = "windows", "amd64"
	}
	if err := build.Program(ctx, a.Root, "courier-node", goos, goarch, landing, options...); err != nil {
		a.t.Fatal(err)
	}
	if said, err := exec.CommandContext(ctx, manager, "--version").Output(); err != nil || string(said) != "courier "+r.version+"\n" {
		a.t.Fatalf("the manager of %s says %q (%v)", r.version, said, err)
	}
	must := labtest.Must[string](a.t)
	must(a.Cluster(ctx, "image", "add", "kubelet-ca-courier/manager:"+r.version, manager))
	must(a.Cluster(ctx, "image", "add", "kubelet-ca-courier/node:"+r.version, landing))
}

// plant writes changed copies of files, and the overlay that puts them in the files' place for the compiler alone.
func (a *admin) plant(dir string, changes map[string][2]string) string {
	a.t.Helper()
	replace := map[string]string{}
	for name, change := range changes {
		file, copied := filepath.Join(a.Root, name), filepath.Base(name)
		text := string(labtest.Must[[]byte](a.t)(os.ReadFile(file)))
		if strings.Count(text, change[0]) != 1 {
			a.t.Fatalf("%s has %q not once: change this test with it", name, change[0])
		}
		a.write(dir, copied, strings.Replace(text, change[0], change[1], 1))
		replace[file] = filepath.Join(dir, copied)
	}
	text := labtest.Must[[]byte](a.t)(json.Marshal(map[string]any{"Replace": replace}))
	a.write(dir, "overlay.json", string(text))
	return filepath.Join(dir, "overlay.json")
}

// runsWine tells whether the Windows nodes run programs built for Windows.
func (a *admin) runsWine() bool {
	a.t.Helper()
	var status struct {
		Nodes []struct{ Name, Program string }
	}
	text := labtest.Must[string](a.t)(a.Cluster(a.t.Context(), "status", "-o", "json"))
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		a.t.Fatal(err)
	}
	for _, node := range status.Nodes {
		if node.Name == a.windows[0] {
			return node.Program == "wine"
		}
	}
	a.t.Fatalf("%s is not there", a.windows[0])
	return false
}
