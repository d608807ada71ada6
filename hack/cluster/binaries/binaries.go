// Package binaries finds the programs that a local cluster runs, and builds from Go modules what is nowhere to be found.
//
// A program is looked for in KUBEBUILDER_ASSETS, the directory that controller-runtime's envtest uses, then in the
// user's cache, one directory per version; what is in neither is built into the cache, once. The versions are those of
// this module's go.mod, so they change by a change of that file alone.
package binaries

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// program says where a program comes from.
type program struct {
	module string
	pkg    string
}

// programs are those that come from other people's modules.
var programs = map[string]program{
	"etcd":                    {"go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"},
	"kube-apiserver":          {"k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"},
	"kube-controller-manager": {"k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	"kube-scheduler":          {"k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"},
	"kubectl":                 {"k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubectl"},
	"kubelet":                 {"k8s.io/kubernetes", "k8s.io/kubernetes/cmd/kubelet"},
	"kwok":                    {"sigs.k8s.io/kwok", "sigs.k8s.io/kwok/cmd/kwok"},
}

// ControlPlane names what every cluster needs.
var ControlPlane = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}

// All names every program that can be built, those for single tests included.
var All = append([]string{"kubelet", "kwok"}, ControlPlane...)

// Store finds and builds programs.
type Store struct {
	// Source is the directory of this module.
	Source string
	// Cache is a directory that outlives clusters.
	Cache string
	// Progress shows what is being built and how far it is.
	Progress *Progress
}

// DefaultCache is where programs are kept for every cluster of the user.
func DefaultCache() (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "kubelet-ca-courier"), err
}

// FindSource looks for the directory of this module from the working directory upwards.
func FindSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		for _, candidate := range []string{dir, filepath.Join(dir, "hack", "cluster")} {
			data, err := os.ReadFile(filepath.Join(candidate, "go.mod"))
			if err == nil && strings.HasPrefix(string(data), "module kubelet-ca-courier/hack/cluster\n") {
				return candidate, nil
			}
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("the source of the local cluster is not here: run this within the repository")
		}
		dir = filepath.Dir(dir)
	}
}

// Version is the version of a module in this module's go.mod.
func (s Store) Version(module string) (string, error) {
	data, err := os.ReadFile(filepath.Join(s.Source, "go.mod"))
	if err != nil {
		return "", err
	}
	match := regexp.MustCompile(`(?m)^\s+` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(data)
	if match == nil {
		return "", fmt.Errorf("%s is not in %s/go.mod", module, s.Source)
	}
	return string(match[1]), nil
}

// Assets is the cache's directory for the versions of today, fit for KUBEBUILDER_ASSETS.
func (s Store) Assets() (string, error) {
	var versions []string
	for _, module := range []string{"k8s.io/kubernetes", "go.etcd.io/etcd/server/v3", "sigs.k8s.io/kwok"} {
		version, err := s.Version(module)
		if err != nil {
			return "", err
		}
		versions = append(versions, version)
	}
	return filepath.Join(s.Cache, fmt.Sprintf("kubernetes-%s-etcd-%s-kwok-%s", versions[0], versions[1], versions[2])), nil
}

// Ensure returns the path of every named program, building those that are missing.
func (s Store) Ensure(ctx context.Context, names ...string) (map[string]string, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir, err := s.Assets()
	if err != nil {
		return nil, err
	}
	given := os.Getenv("KUBEBUILDER_ASSETS")
	if given != "" {
		if given, err = filepath.Abs(given); err != nil {
			return nil, err
		}
	}
	found := map[string]string{}
	missing := map[string][]string{} // by module, since programs of one module share most of the work
	for _, name := range names {
		found[name] = filepath.Join(dir, name)
		switch p, known := programs[name]; {
		case !known:
			return nil, fmt.Errorf("no program is called %q", name)
		case given != "" && exists(filepath.Join(given, name)):
			found[name] = filepath.Join(given, name)
		case !exists(found[name]):
			missing[p.module] = append(missing[p.module], name)
		}
	}
	for _, names := range missing {
		if err := s.build(ctx, dir, names); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// build builds programs of one module into dir. They are built next to it first: a build that is cut short leaves none.
func (s Store) build(ctx context.Context, dir string, names []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(dir, ".build-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	version, err := s.Version("k8s.io/kubernetes")
	if err != nil {
		return err
	}
	output := temporary + "/"
	if len(names) == 1 {
		output += names[0] // etcd's package is not called etcd
	}
	build := goBuild{
		what:   strings.Join(names, ", "),
		dir:    s.Source,
		env:    []string{"CGO_ENABLED=0"},
		output: output,
		flags:  []string{"-trimpath", "-ldflags", linkerFlags(version)},
	}
	for _, name := range names {
		build.packages = append(build.packages, programs[name].pkg)
	}
	if err := build.run(ctx, s.Progress); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(temporary, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// linkerFlags sets the version that the programs report: kubectl and kubelet refuse the placeholder.
func linkerFlags(version string) string {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return "-s -w" +
		" -X k8s.io/component-base/version.gitVersion=" + version +
		" -X k8s.io/client-go/pkg/version.gitVersion=" + version +
		" -X k8s.io/component-base/version.gitMajor=" + parts[0] +
		" -X k8s.io/component-base/version.gitMinor=" + parts[1]
}

// Own is a program of this repository.
type Own struct {
	// Name is that of the file to write.
	Name string
	// Module is the module's directory and Package the package's path below it.
	Module, Package string
	// Windows builds for windows/amd64.
	Windows bool
}

// BuildOwn builds programs of this repository into dir. The last build is kept in the cache, so that this takes a
// moment when nothing changed.
func (s Store) BuildOwn(ctx context.Context, dir string, programs ...Own) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		kept := filepath.Join(s.Cache, "own", p.Name)
		build := goBuild{what: p.Name, dir: p.Module, output: kept, packages: []string{p.Package}}
		if p.Windows {
			build.env = []string{"GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0"}
		}
		if p.Module == s.Source {
			// As the control plane is built, so that the packages which both need are compiled once.
			build.env, build.flags = []string{"CGO_ENABLED=0"}, []string{"-trimpath", "-ldflags=-s -w"}
		}
		if err := build.run(ctx, s.Progress); err != nil {
			return err
		}
		if err := install(kept, filepath.Join(dir, p.Name)); err != nil {
			return err
		}
	}
	return nil
}

// install puts a program at a path, replacing the one that is there even while it runs.
func install(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".new", data, 0o755); err != nil {
		return err
	}
	return os.Rename(to+".new", to)
}

// lock lets one command at a time build into the cache.
func (s Store) lock() (unlock func(), err error) {
	if err := os.MkdirAll(s.Cache, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(s.Cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		s.Progress.Say("waiting for another build into %s", s.Cache)
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
		}
	}
	return func() { _ = file.Close() }, nil // closing is unlocking
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
