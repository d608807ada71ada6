// Package lab runs a real control plane for tests, as processes on loopback: etcd and kube-apiserver from envtest, and
// where asked for the Job and garbage-collecting controllers, the scheduler, and kwok, which plays the nodes.
package lab

import (
	"context"
	_ "embed" // for stages.yaml
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"kubelet-ca-courier/test/need"
)

// Lab is a running control plane.
type Lab struct {
	// Config is an administrator's access.
	Config *rest.Config
	// Kubeconfig is a file with the same access.
	Kubeconfig string
	// Audit is the API server's audit log: one line for each write, with its metadata.
	Audit string
	// Dir holds this file and every process's log.
	Dir string

	assets  string
	courier string
}

// CourierUser is the name under which the audit log knows courier.
const CourierUser = "courier"

//go:embed stages.yaml
var stages string

// startTimeout is how long a process may take on a machine that is busy with something else.
const startTimeout = 5 * time.Minute

// auditPolicy logs every write once, when it is answered.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
`

// Start runs etcd and kube-apiserver until the test ends.
func Start(t testing.TB) *Lab {
	t.Helper()
	ctrllog.SetLogger(logr.Discard()) // envtest's: the programs have logs of their own
	l := &Lab{assets: need.ControlPlane(t), Dir: t.TempDir()}
	l.Audit = filepath.Join(l.Dir, "audit.log")
	policy := l.write(t, "audit-policy.yaml", auditPolicy)
	env := &envtest.Environment{
		BinaryAssetsDirectory:    l.assets,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  startTimeout,
	}
	env.ControlPlane.GetAPIServer().Configure().
		Set("audit-policy-file", policy).
		Set("audit-log-path", l.Audit).
		Set("audit-log-maxsize", "100000"). // megabytes: one file
		Set("endpoint-reconciler-type", "none").
		Set("disable-admission-plugins", "ServiceAccount")
	config, err := env.Start()
	if err != nil {
		t.Fatalf("starting the API server: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	config.QPS = -1
	l.Config = config
	l.Kubeconfig = l.user(t, env, "lab", "system:masters")
	l.courier = l.user(t, env, CourierUser)
	l.empowerCourier(t)
	return l
}

// CourierKubeconfig is a file with an access for courier, so that its requests can be told from others'.
func (l *Lab) CourierKubeconfig() string { return l.courier }

// empowerCourier gives courier all rights through a role. As one of system:masters it would be exempt from API Priority and
// Fairness, which no courier is.
func (l *Lab) empowerCourier(t testing.TB) {
	t.Helper()
	client, err := kubernetes.NewForConfig(l.Config)
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: CourierUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: CourierUser}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("giving courier its rights: %v", err)
	}
}

// user adds a user of the groups and returns a kubeconfig file.
func (l *Lab) user(t testing.TB, env *envtest.Environment, name string, groups ...string) string {
	t.Helper()
	user, err := env.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		t.Fatalf("adding a user: %v", err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatalf("writing a kubeconfig: %v", err)
	}
	return l.write(t, name+".kubeconfig", string(kubeconfig))
}

// Controllers runs the controllers that Jobs need, and the scheduler.
func (l *Lab) Controllers(t testing.TB) {
	t.Helper()
	l.Run(t, filepath.Join(l.assets, "kube-controller-manager"),
		"--kubeconfig="+l.Kubeconfig, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=2000", "--kube-api-burst=4000",
		"--controllers=job-controller,garbage-collector-controller,namespace-controller")
	l.Run(t, filepath.Join(l.assets, "kube-scheduler"),
		"--kubeconfig="+l.Kubeconfig, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=2000", "--kube-api-burst=4000")
}

// Kwok runs kwok, which brings every pod on every node to its end.
func (l *Lab) Kwok(t testing.TB) {
	t.Helper()
	l.Run(t, filepath.Join(l.assets, "kwok"), "--config="+l.write(t, "stages.yaml", stages), "--kubeconfig="+l.Kubeconfig,
		"--manage-all-nodes=true", "--node-lease-duration-seconds=0")
}

// Run starts a program whose output goes to a file of its name, and ends it with the test.
func (l *Lab) Run(t testing.TB, program string, arguments ...string) *os.Process {
	t.Helper()
	name := filepath.Join(l.Dir, filepath.Base(program)+".log")
	log, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatalf("opening a log: %v", err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", program, err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed, or had ended before
		_ = log.Close()
		if t.Failed() {
			t.Logf("the last lines of %s:\n%s", name, tail(name))
		}
	})
	return cmd.Process
}

// FreePorts returns ports of loopback that nobody listens on.
func FreePorts(t testing.TB, count int) []string {
	t.Helper()
	var ports []string
	for range count {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("finding a free port: %v", err)
		}
		defer func() { _ = listener.Close() }()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			t.Fatalf("finding a free port: %v", err)
		}
		ports = append(ports, port)
	}
	return ports
}

// Assets is the directory with the control plane's programs.
func (l *Lab) Assets() string { return l.assets }

func (l *Lab) write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(l.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatalf("writing %s: %v", path, err)
	}
	return path
}

// tail returns the end of a file.
func tail(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Sprint(err)
	}
	const most = 4000
	return string(text[max(0, len(text)-most):])
}
