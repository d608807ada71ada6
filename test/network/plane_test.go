package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/hack/build"
	"kubelet-ca-courier/test/need"
	"kubelet-ca-courier/test/scale/lab"
)

const (
	// sources, guarded and key are where the guarded bundle is.
	sources, guarded, key = "sources", "guarded", "ca"
	// patience bounds every wait for a condition; nothing takes that long unless it is broken.
	patience = 5 * time.Minute
)

// root is the repository's.
const root = "../.."

// programs is where the programs are built, once each.
var (
	programs string
	building sync.Mutex
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "courier-network-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "network:", err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// program builds one of the programs that ship, unless it is there already.
func program(t *testing.T, name string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	path := filepath.Join(programs, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := build.Program(t.Context(), root, name, runtime.GOOS, runtime.GOARCH, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// plane is a control plane with Windows nodes.
type plane struct {
	*lab.Lab
	client       kubernetes.Interface
	nodes        []string
	jobs         *history
	certificates string
	// text is the guarded bundle, and rotations how many there were.
	text      string
	rotations int
}

// startPlane runs a control plane with the nodes until the test ends.
func startPlane(t *testing.T, nodes ...string) *plane {
	t.Helper()
	need.ControlPlane(t)
	p := &plane{Lab: lab.Start(t), nodes: nodes}
	p.Controllers(t)
	p.Kwok(t)
	p.certificates = p.ServingDir(t)
	client, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	p.client = client
	for _, name := range []string{dispatcher.ManagerNamespace, dispatcher.JobsNamespace, sources} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range nodes {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), lab.WindowsNode(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.jobs = record(t, client)
	p.apply(t, dispatcher.ManagerNamespace, dispatcher.ConfigName, map[string]string{dispatcher.SettingsKey: fmt.Sprintf(
		"guarded: {namespace: %s, name: %s, key: %s}\ndestination: C:\\k\\kubelet-ca.crt\nimage: kubelet-ca-courier/node:dev\n",
		sources, guarded, key)})
	return p
}

// numbered returns names of nodes.
func numbered(count int) []string {
	var names []string
	for i := range count {
		names = append(names, fmt.Sprintf("win-%02d", i))
	}
	return names
}

// apply creates or updates a ConfigMap.
func (p *plane) apply(t *testing.T, namespace, name string, data map[string]string) {
	t.Helper()
	if err := p.try(t.Context(), namespace, name, data); err != nil {
		t.Fatal(err)
	}
}

// try is apply, for dry if so said, with the API server's answer.
func (p *plane) try(ctx context.Context, namespace, name string, data map[string]string, dry ...string) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
	_, err := p.client.CoreV1().ConfigMaps(namespace).Update(ctx, object, metav1.UpdateOptions{DryRun: dry})
	if apierrors.IsNotFound(err) {
		_, err = p.client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{DryRun: dry})
	}
	return err
}

// rotate adds a signer to the guarded bundle, as the operator does, and returns the hash under which it is delivered.
func (p *plane) rotate(t *testing.T) string {
	t.Helper()
	return p.guard(t, p.text+lab.CA(t, fmt.Sprintf("signer-%d", p.rotations)))
}

// guard writes the guarded bundle, which is a new one, and returns its hash.
func (p *plane) guard(t *testing.T, text string) string {
	t.Helper()
	hash := hashOf(t, text)
	p.jobs.published(hash)
	p.apply(t, sources, guarded, map[string]string{key: text})
	p.text = text
	p.rotations++
	return hash
}

// hashOf is the hash under which a bundle is delivered.
func hashOf(t *testing.T, text string) string {
	t.Helper()
	parsed, findings := bundle.Parse([]byte(text))
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	return parsed.Hash()
}

// underway waits until the first Jobs of the bundle are there, and not all.
func (p *plane) underway(t *testing.T, hash string) {
	t.Helper()
	eventually(t, "the rotation is under way", func(context.Context) error {
		if p.jobs.created(hash) == 0 {
			return errors.New("there is no Job yet")
		}
		return nil
	})
}

// settled waits until every node has exactly one Job, which succeeded with the bundle.
func (p *plane) settled(t *testing.T, hash string) {
	t.Helper()
	eventually(t, "every node has one succeeded Job of the newest bundle", func(ctx context.Context) error {
		list, err := p.client.BatchV1().Jobs(dispatcher.JobsNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		there := map[string]bool{}
		for i := range list.Items {
			record := dispatcher.ReadRecord(&list.Items[i])
			if record.NodeName == lab.FailingNode {
				continue
			}
			if record.Phase != dispatcher.Succeeded || record.Hash != hash || there[record.NodeName] {
				return fmt.Errorf("%s has a Job of bundle %.8s that is %s", record.NodeName, record.Hash, record.Phase)
			}
			there[record.NodeName] = true
		}
		for _, node := range p.nodes {
			if node != lab.FailingNode && !there[node] {
				return fmt.Errorf("%s has no Job", node)
			}
		}
		return nil
	})
}

// episode is what happens between two moments.
type episode struct {
	p         *plane
	events    int
	audit     int
	rotations int
}

// begin notes what there is so far.
func (p *plane) begin(t *testing.T) *episode {
	t.Helper()
	return &episode{p: p, events: p.jobs.length(), audit: len(p.requests(t)), rotations: p.rotations}
}

// end checks that nothing was lost and nothing done too often, by what was watched and by the audit log.
func (e *episode) end(t *testing.T) {
	t.Helper()
	rotations := e.p.rotations - e.rotations
	writes, faults := e.p.jobs.check(e.events)
	for _, fault := range faults {
		t.Error(fault)
	}
	asked, answers := map[string]int{}, map[string]int{}
	for _, r := range e.p.requests(t)[e.audit:] {
		answers[fmt.Sprintf("%s %s %d", r.Verb, r.ObjectRef.Resource, r.ResponseStatus.Code)]++
		if r.ObjectRef.Resource == "jobs" && r.ResponseStatus.Code < 300 {
			asked[r.ObjectRef.Name]++
		}
	}
	for _, node := range e.p.nodes {
		// A write whose answer was lost has to be asked for again, and is answered with success although it changes nothing.
		if most, again := 2*rotations, rotations; node != lab.FailingNode && (writes[node] > most || asked[node] > most+again) {
			t.Errorf("%s: %d Jobs were made or deleted with %d writes in %d rotations", node, writes[node], asked[node], rotations)
		}
	}
	var told []string
	for _, answer := range slices.Sorted(maps.Keys(answers)) {
		told = append(told, fmt.Sprintf("%s: %d", answer, answers[answer]))
	}
	t.Logf("courier's writes in %d rotations, by what came of them: %s", rotations, strings.Join(told, ", "))
}

// status is what kubectl courier status says first; an administrator's way to the API server is not courier's.
func (p *plane) status(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "kubectl-courier"), "status", "--kubeconfig="+p.Kubeconfig)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		t.Fatalf("kubectl courier status: %v\n%s", err, out)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// eventually tries until the attempt succeeds; its last error is the failure.
func eventually(t *testing.T, what string, attempt func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := attempt(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
