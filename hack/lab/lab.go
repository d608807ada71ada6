// Package lab drives the local cluster of hack/cluster through its command line, for the demo and for tests: the cluster
// is a module of its own, so that what it takes to build Kubernetes stays out of the product's go.mod.
package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Lab is one local cluster, in one directory.
type Lab struct {
	// Dir holds everything that the cluster writes: certificates, data, nodes' disks, logs.
	Dir string
	// Root is the root of this repository.
	Root string

	program  string
	progress io.Writer

	// running is held by every command of the cluster, and alone by the one that ends it.
	running sync.RWMutex
	// over is done from the moment at which the cluster is being ended.
	over context.Context //nolint:containedctx // it is the life of the cluster, and of no call
	end  context.CancelFunc
}

// Open builds the cluster's program, which is quick when nothing changed, and returns the lab of the directory. Progress
// goes to the writer.
func Open(ctx context.Context, dir string, progress io.Writer) (*Lab, error) {
	root, err := repository(ctx)
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("no place for the local cluster's program: %w", err)
	}
	l := &Lab{Dir: dir, Root: root, program: filepath.Join(cache, "kubelet-ca-courier", "cluster"), progress: progress}
	l.watchEnd()
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", l.program, ".")
	build.Dir = filepath.Join(root, "hack", "cluster")
	build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0") // the control plane's flags: nothing is compiled twice
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the local cluster's program: %w\n%s", err, out)
	}
	return l, nil
}

// watchEnd has commands run until the cluster is being ended.
func (l *Lab) watchEnd() { l.over, l.end = context.WithCancel(context.Background()) }

// repository finds the root of the module that the working directory is in.
func repository(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("ask go for the module: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if filepath.Base(mod) != "go.mod" {
		return "", errors.New("not inside of the repository")
	}
	return filepath.Dir(mod), nil
}

// Cluster runs one command of the local cluster, which may take long, and returns what it printed. Once the cluster is being
// ended it runs none.
func (l *Lab) Cluster(ctx context.Context, args ...string) (string, error) {
	return l.run(ctx, args, l.progress)
}

// errOver says that a command came too late.
var errOver = errors.New("the cluster is being ended")

func (l *Lab) run(ctx context.Context, args []string, progress io.Writer) (string, error) {
	l.running.RLock()
	defer l.running.RUnlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.over, func() { cancel(errOver) })()
	if l.over.Err() != nil {
		return "", errOver
	}
	return run(l.command(ctx, args), progress)
}

// Signer makes a signer of the API server's client certificate, valid for a year, unless there is one of that name.
func (l *Lab) Signer(ctx context.Context, name string) error {
	if _, err := l.run(ctx, []string{"signer", "bundle", name}, nil); err == nil {
		return nil
	}
	_, err := l.Cluster(ctx, "signer", "new", name, "--valid-for", "8760h")
	return err
}

// lastWords is how long a command of the cluster that is interrupted may take to end what it has started.
const lastWords = 15 * time.Second

func (l *Lab) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.program, append([]string{"--dir", l.Dir}, args...)...)
	cmd.Dir = filepath.Join(l.Root, "hack", "cluster")
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(os.Interrupt) }, lastWords
	return cmd
}

// Kubectl runs the cluster's own kubectl as its administrator and returns what it printed.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	return l.KubectlWith(ctx, nil, args...)
}

// KubectlWith is Kubectl with something on standard input.
func (l *Lab) KubectlWith(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.Dir, "bin", "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig(), "KUBECACHEDIR="+filepath.Join(l.Dir, "kubectl-cache"))
	cmd.Dir = l.Root
	cmd.Stdin = stdin
	return run(cmd, nil)
}

// run runs a command. What it prints on standard error goes to the progress or, without one, into the error. A terminal
// is handed down as it is, so that the command can draw on it.
func run(cmd *exec.Cmd, progress io.Writer) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, io.Writer(&stderr)
	if progress != nil {
		cmd.Stderr = progress
	}
	if err := cmd.Run(); err != nil {
		name := filepath.Base(cmd.Path) + " " + strings.Join(cmd.Args[1:], " ")
		return stdout.String(), &Failure{Command: name, Stderr: strings.TrimSpace(stderr.String()), err: err}
	}
	return stdout.String(), nil
}

// Failure is a command that ended with a non-zero exit status.
type Failure struct {
	// Command is the command line.
	Command string
	// Stderr is what it printed on standard error.
	Stderr string
	err    error
}

// Error names the command and what it said.
func (f *Failure) Error() string { return fmt.Sprintf("%s: %v\n%s", f.Command, f.err, f.Stderr) }

// Unwrap returns the error of os/exec.
func (f *Failure) Unwrap() error { return f.err }

// Kubeconfig is the administrator's.
func (l *Lab) Kubeconfig() string { return filepath.Join(l.Dir, "kubeconfig") }

// Disk is a path on a simulated Windows node's private drive C.
func (l *Lab) Disk(node string, elements ...string) string {
	return filepath.Join(append([]string{l.Dir, "nodes", node, "c"}, elements...)...)
}

// Client returns a client with the administrator's rights and without a rate limit.
func (l *Lab) Client() (kubernetes.Interface, *rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig())
	if err != nil {
		return nil, nil, err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	return client, config, err
}
