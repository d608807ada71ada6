// Package scale measures a rollout to many nodes on a real control plane, against a plain loop that creates the same Jobs.
package scale

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/test/scale/lab"
)

var (
	nodes  = flag.Int("nodes", 100, "number of nodes")
	strict = flag.Bool("strict", false, "fail when a ratio is beyond what the design promises for this number of nodes")
	idle   = flag.Duration("idle", 20*time.Second, "how long to watch for writes once nothing is to be done")
)

const (
	// loopWorkers is how many requests the loop has under way.
	loopWorkers = 32
	// sources is where the guarded ConfigMap is.
	sources = "sources"
	// patience ends a test that hangs; what is measured is compared within the run, never with it.
	patience = time.Hour
)

func TestScale(t *testing.T) {
	l := lab.Start(t)
	l.Controllers(t)
	l.Kwok(t)
	b := &bench{t: t, l: l, client: clientFor(t, l.Config)}
	b.prepare()
	jobs := b.watchJobs()
	program := build(t)

	loop := b.loop(jobs)
	t.Logf("%d nodes, plain loop with %d workers: %.1f s", *nodes, loopWorkers, loop.Seconds())
	b.clear(jobs)

	unlimited := b.rollout(jobs, program, "slowStart: false", "first")
	b.report("pace unlimited", unlimited, loop, limitFor(*nodes, true))
	b.clear(jobs)

	paced := b.rollout(jobs, program, "", "second", "third")
	b.report("default pace", paced, loop, limitFor(*nodes, false))
}

// limitFor is the ratio that the design promises, or 0 where it promises none.
func limitFor(n int, unlimited bool) float64 {
	switch {
	case n < 1000:
		return 0
	case unlimited:
		return 1.1
	case n < 5000:
		return 1.4
	default:
		return 1.15
	}
}

// measured is what was seen of one life of the dispatcher.
type measured struct {
	// rounds are the times from the write of the ConfigMap to the last Job's completion; all but the first are
	// rotations, in which every node's old Job goes.
	rounds []time.Duration
	// writes are those of the dispatcher, per round, by verb and resource.
	writes []map[string]int
	// idle are those once nothing was to be done.
	idle map[string]int
	// peak and resident are memory in MiB.
	peak, resident int
}

// report logs the figures, and fails for those that are beyond what is promised.
func (b *bench) report(what string, m measured, loop time.Duration, limit float64) {
	b.t.Helper()
	for i, took := range m.rounds {
		kind := "first delivery"
		if i > 0 {
			kind = "rotation"
		}
		ratio := took.Seconds() / loop.Seconds()
		perNode := float64(m.writes[i]["create jobs"]+m.writes[i]["delete jobs"]) / float64(*nodes)
		b.t.Logf("%d nodes, %s, %s: %.1f s, %.2f times the loop; %.2f writes of Jobs a node; all writes: %v",
			*nodes, what, kind, took.Seconds(), ratio, perNode, m.writes[i])
		if perNode > 2 {
			b.t.Errorf("%s, %s: %.2f writes of Jobs a node, want at most 2", what, kind, perNode)
		}
		if *strict && i == 0 && limit > 0 && ratio > limit {
			b.t.Errorf("%s, %s: %.2f times the loop, want at most %.2f", what, kind, ratio, limit)
		}
	}
	b.t.Logf("%d nodes, %s: %d MiB resident, %d MiB at the peak; writes in %s of idleness: %v",
		*nodes, what, m.resident, m.peak, *idle, m.idle)
	if len(m.idle) > 0 {
		b.t.Errorf("%s: wrote while nothing was to be done: %v", what, m.idle)
	}
	if m.peak > 100 {
		b.t.Errorf("%s: %d MiB at the peak, want at most 100", what, m.peak)
	}
}

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
		_, err := b.client.CoreV1().Nodes().Create(ctx, windowsNode(i), metav1.CreateOptions{})
		return err
	})
}

func nodeName(i int) string { return fmt.Sprintf("win-%05d", i) }

// windowsNode is Ready from the start; kwok leaves it so.
func windowsNode(i int) *corev1.Node {
	name := nodeName(i)
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name,
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "os", Value: "Windows", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
			NodeInfo:   corev1.NodeSystemInfo{BootID: "boot-a" + strconv.Itoa(i), OperatingSystem: "windows", Architecture: "amd64"},
		},
	}
}

// loop creates the Jobs that the dispatcher would create, and nothing else happens.
func (b *bench) loop(jobs *completions) time.Duration {
	b.t.Helper()
	config, err := dispatcher.ParseConfig(configuration(""))
	b.must(err)
	target, err := dispatcher.NewTarget(dispatcher.Snapshot{Name: "kubelet-ca-loop", Hash: strings.Repeat("0", 64)}, config, dispatcher.JobsNamespace)
	b.must(err)
	list, err := b.client.CoreV1().Nodes().List(b.t.Context(), metav1.ListOptions{})
	b.must(err)
	begin := time.Now()
	b.parallel(len(list.Items), func(i int) error {
		job := target.Job(dispatcher.ReadNode(&list.Items[i]), dispatcher.Attempt{Number: 1, Cause: dispatcher.CauseMissing})
		_, err := b.client.BatchV1().Jobs(job.Namespace).Create(b.t.Context(), job, metav1.CreateOptions{})
		return err
	})
	return jobs.wait(b.t, target.Snapshot.Hash).Sub(begin)
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

// rollout runs the dispatcher with a bundle for each of the names, one after another.
func (b *bench) rollout(jobs *completions, program, pace string, names ...string) measured {
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
	<-time.After(*idle)
	m.idle = difference(b.writes(), before)
	m.peak, m.resident = memoryOf(b.t, process.Pid, "VmHWM"), memoryOf(b.t, process.Pid, "VmRSS")
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
		"--webhook-port="+freePort(b.t), "--metrics-port=0", "--health-port=0")
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

// writes counts the dispatcher's writes so far, by verb and resource, from the audit log; those of its lease apart.
func (b *bench) writes() map[string]int {
	b.t.Helper()
	text, err := os.ReadFile(b.l.Audit)
	b.must(err)
	counts := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource string }
		}
		if json.Unmarshal([]byte(line), &entry) != nil || entry.User.Username != lab.CourierUser || entry.ObjectRef.Resource == "leases" {
			continue
		}
		counts[entry.Verb+" "+entry.ObjectRef.Resource]++
	}
	return counts
}

// difference returns what was added.
func difference(after, before map[string]int) map[string]int {
	added := maps.Clone(after)
	for key := range added {
		if added[key] -= before[key]; added[key] == 0 {
			delete(added, key)
		}
	}
	return added
}

// completions follows the Jobs.
type completions struct {
	mu   sync.Mutex
	done map[string]map[string]time.Time // by bundle, by Job
	here map[string]bool
	more chan struct{}
}

func (b *bench) watchJobs() *completions {
	b.t.Helper()
	c := &completions{done: map[string]map[string]time.Time{}, here: map[string]bool{}, more: make(chan struct{}, 1)}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(b.client.BatchV1().RESTClient(), "jobs", dispatcher.JobsNamespace, fields.Everything()),
		ObjectType:    &batchv1.Job{},
		Handler: toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { c.see(object.(*batchv1.Job)) },
			UpdateFunc: func(_, object any) { c.see(object.(*batchv1.Job)) },
			DeleteFunc: func(object any) { c.gone(object) },
		},
	})
	go informer.RunWithContext(b.t.Context())
	return c
}

func (c *completions) see(job *batchv1.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.here[job.Name] = true
	record := dispatcher.ReadRecord(job)
	if record.Phase != dispatcher.Succeeded {
		return
	}
	if c.done[record.Hash] == nil {
		c.done[record.Hash] = map[string]time.Time{}
	}
	if _, ok := c.done[record.Hash][job.Name]; ok {
		return
	}
	c.done[record.Hash][job.Name] = time.Now()
	c.poke()
}

func (c *completions) gone(object any) {
	key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, name, _ := strings.Cut(key, "/")
	delete(c.here, name)
}

func (c *completions) poke() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *completions) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.here) == 0
}

// wait returns the time at which the last node's Job for the bundle was seen to complete.
func (c *completions) wait(t testing.TB, hash string) time.Time {
	t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		done := slices.Collect(maps.Values(c.done[hash]))
		c.mu.Unlock()
		if len(done) == *nodes {
			return slices.MaxFunc(done, time.Time.Compare)
		}
		select {
		case <-c.more:
		case <-deadline:
			t.Fatalf("only %d of %d nodes have a completed Job", len(done), *nodes)
		}
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

func freePort(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// memoryOf reads a field of a process's status in MiB (proc(5)).
func memoryOf(t testing.TB, pid int, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(field + `:\s*(\d+) kB`).FindSubmatch(text)
	if match == nil {
		t.Fatalf("%s is not in the status", field)
	}
	kib, err := strconv.Atoi(string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}
