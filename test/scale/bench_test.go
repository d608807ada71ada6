package scale

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/test/scale/lab"
)

// bench is the control plane with its nodes.
type bench struct {
	t      testing.TB
	l      *lab.Lab
	client *kubernetes.Clientset
}

// prepare makes namespaces and nodes.
func (b *bench) prepare() {
	b.t.Helper()
	ctx := b.t.Context()
	for _, name := range []string{dispatcher.ManagerNamespace, dispatcher.JobsNamespace, sources} {
		_, err := b.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		b.must(err)
	}
	b.parallel(*nodes, func(i int) error {
		_, err := b.client.CoreV1().Nodes().Create(ctx, lab.WindowsNode(nodeName(i)), metav1.CreateOptions{})
		return err
	})
}

func nodeName(i int) string { return fmt.Sprintf("win-%05d", i) }

// loop creates the Jobs that the dispatcher would create, and nothing else happens; then they are cleared away.
func (b *bench) loop(jobs *completions, name string) time.Duration {
	b.t.Helper()
	if !*loops {
		return 0
	}
	hash := bundle.Hash([]byte(name))
	config, err := dispatcher.ParseConfig(configuration(""))
	b.must(err)
	target, err := dispatcher.NewTarget(dispatcher.Snapshot{Name: "kubelet-ca-loop-" + name, Hash: hash}, config, dispatcher.JobsNamespace)
	b.must(err)
	list, err := b.client.CoreV1().Nodes().List(b.t.Context(), metav1.ListOptions{})
	b.must(err)
	begin := time.Now()
	b.parallel(len(list.Items), func(i int) error {
		job := target.Job(dispatcher.ReadNode(&list.Items[i]), dispatcher.Attempt{Number: 1, Cause: dispatcher.CauseMissing})
		_, err := b.client.BatchV1().Jobs(job.Namespace).Create(b.t.Context(), job, metav1.CreateOptions{})
		return err
	})
	took := jobs.wait(b.t, hash).Sub(begin)
	b.clear(jobs)
	return took
}

// parallel calls do for 0 to n-1, with the loop's number of workers.
func (b *bench) parallel(n int, do func(i int) error) {
	b.t.Helper()
	var group errgroup.Group
	group.SetLimit(loopWorkers)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	b.must(group.Wait())
}

// clear removes all Jobs, their pods, and what the dispatcher remembers.
func (b *bench) clear(jobs *completions) {
	b.t.Helper()
	ctx, background := b.t.Context(), metav1.DeletePropagationBackground
	b.parallel(*nodes, func(i int) error {
		err := b.client.BatchV1().Jobs(dispatcher.JobsNamespace).Delete(ctx, nodeName(i), metav1.DeleteOptions{PropagationPolicy: &background})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	b.must(b.client.CoreV1().ConfigMaps(dispatcher.JobsNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	b.must(wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		pods, err := b.client.CoreV1().Pods(dispatcher.JobsNamespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil && len(pods.Items) == 0 && jobs.none(), err
	}))
}

// rollout runs the dispatcher with a bundle for each of the names, one after another, and then watches it idle.
func (b *bench) rollout(jobs *completions, program, pace string, idle time.Duration, names ...string) measured {
	b.t.Helper()
	ctx := b.t.Context()
	b.apply(dispatcher.ManagerNamespace, dispatcher.ConfigName, configuration(pace))
	process := b.courier(program)
	var m measured
	text := ""
	for _, name := range names {
		text += lab.CA(b.t, name)
		before := b.writes()
		begin := time.Now()
		b.apply(sources, "guarded", map[string]string{"ca": text})
		m.rounds = append(m.rounds, jobs.wait(b.t, hashOf(b.t, text)).Sub(begin))
		m.writes = append(m.writes, difference(b.writes(), before))
	}
	// The events that tell the end come a moment after it.
	b.must(wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		return finished(ctx, b.client, len(names))
	}))
	before := b.writes()
	<-time.After(idle)
	m.idle, m.idleFor = difference(b.writes(), before), idle
	m.peak, m.resident = memoryOf(b.t, process.Pid, "VmHWM"), memoryOf(b.t, process.Pid, "VmRSS")
	m.processor = processorTime(b.t, process.Pid)
	b.must(process.Signal(os.Interrupt))
	b.awaitLeader(false)
	b.must(b.client.CoreV1().ConfigMaps(sources).Delete(ctx, "guarded", metav1.DeleteOptions{}))
	b.must(b.client.EventsV1().Events(sources).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	return m
}

// finished reports whether the end of so many deliveries was told.
func finished(ctx context.Context, client kubernetes.Interface, rounds int) (bool, error) {
	list, err := client.EventsV1().Events(sources).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	told := 0
	for _, event := range list.Items {
		if event.Reason == dispatcher.ReasonFinished {
			told++
		}
	}
	return told == rounds, nil
}

// courier runs the real program, and returns when it leads.
func (b *bench) courier(program string) *os.Process {
	b.t.Helper()
	process := b.l.Run(b.t, program,
		"--kubeconfig="+b.l.CourierKubeconfig(), "--cert-dir="+b.l.ServingDir(b.t), "--bind-address=127.0.0.1",
		"--webhook-port="+lab.FreePorts(b.t, 1)[0], "--metrics-port=0", "--health-port=0")
	b.awaitLeader(true)
	return process
}

// awaitLeader waits until somebody leads, or nobody any more.
func (b *bench) awaitLeader(wanted bool) {
	b.t.Helper()
	b.must(wait.PollUntilContextTimeout(b.t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		lease, err := b.client.CoordinationV1().Leases(dispatcher.ManagerNamespace).Get(ctx, "courier", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return !wanted, nil
		}
		leads := err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
		return leads == wanted, err
	}))
}

func configuration(pace string) map[string]string {
	return map[string]string{dispatcher.SettingsKey: "guarded: {namespace: " + sources + ", name: guarded, key: ca}\n" +
		"destination: C:\\k\\kubelet-ca.crt\nimage: kubelet-ca-courier/node:dev\n" + pace}
}

// apply creates or updates a ConfigMap.
func (b *bench) apply(namespace, name string, data map[string]string) {
	b.t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
	_, err := b.client.CoreV1().ConfigMaps(namespace).Update(b.t.Context(), object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = b.client.CoreV1().ConfigMaps(namespace).Create(b.t.Context(), object, metav1.CreateOptions{})
	}
	b.must(err)
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// build compiles the program.
func build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "courier")
	out, err := exec.Command("go", "build", "-o", path, "kubelet-ca-courier/cmd/courier").CombinedOutput()
	if err != nil {
		t.Fatalf("building courier: %v\n%s", err, out)
	}
	return path
}

// hashOf is the hash under which the bundle is delivered.
func hashOf(t testing.TB, text string) string {
	t.Helper()
	parsed, findings := bundle.Parse([]byte(text))
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	return parsed.Hash()
}

func clientFor(t testing.TB, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
