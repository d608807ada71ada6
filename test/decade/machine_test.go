package decade

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/node"
)

// destination is where the kubelet's file is, and source where a pod finds the bundle, on the model's disk.
const (
	destination = "/c/k/kubelet-ca.crt"
	source      = "/c/kubelet-ca-courier/ca-bundle.crt"
)

// machine is a Windows node: a disk, a kubelet, and pods.
type machine struct {
	w       *world
	name    string
	exists  bool
	ready   since
	boots   int
	minor   int // of the kubelet's version 1.x
	off     time.Duration
	disk    *disk
	kubelet kubelet

	// foreign says that somebody else wrote the file, and when. well is from when on the disk takes writes.
	foreign since
	well    time.Time
	// landed is the order of acceptance of the newest snapshot that was landed here.
	landed int
	// started are the pods that run, and stopAt is the step of the disk at which the next landing is killed.
	started map[id]string // with the hash of the bundle that each lands
	stopAt  int

	looked     []byte
	remembered remembered
}

// machine finds a node that exists, or existed.
func (w *world) machine(name string) *machine {
	for _, m := range w.nodes {
		if m.name == name {
			return m
		}
	}
	panic("there is no node " + name)
}

// join makes a node, as new: its file holds what its installer took from the cluster at that moment.
func (w *world) join(name string) {
	index := slices.IndexFunc(w.nodes, func(m *machine) bool { return m.name == name })
	m := &machine{w: w, name: name, exists: true, started: map[id]string{}}
	if index >= 0 {
		m.boots = w.nodes[index].boots
		w.nodes[index] = m
	} else {
		w.nodes = append(w.nodes, m)
	}
	m.minor = 34 + int(w.draw("machine/minor")%4)
	if w.history.confirm && w.history.seed%16 != 1 {
		m.minor = max(m.minor, 36) // --confirm is for these (docs/landing.md); one cluster in sixteen does not heed that
	}
	m.off = w.between("machine/clock", 0, 6*time.Minute) - 3*time.Minute
	m.disk = &disk{m: m, files: map[string][]byte{}}
	m.boots++
	initial := w.api.configMap(managedNamespace, managedName)
	if initial == nil || w.oneIn("machine/initial", 3) {
		initial = w.api.configMap(guardedNamespace, guardedName)
	}
	if initial != nil {
		m.disk.files[destination] = []byte(initial.Data[bundleKey])
	}
	if _, err := dynamiccertificates.NewStaticCAContent("initial", m.disk.files[destination]); err != nil {
		m.disk.files[destination] = w.operator.signer.pem // its installer retries until it has something that parses
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "windows"}}}
	object.Status = m.status(true)
	if err := w.api.put(userSystem, id{"nodes", "", name}, object); err != nil {
		w.after(time.Minute, func() {
			if !w.machine(name).exists {
				w.join(name)
			}
		})
		m.exists = false
		return
	}
	m.start()
	m.ready.set(true, w.now)
}

// leave removes a node, if it is there and the API server too.
func (m *machine) leave() bool {
	if !m.exists {
		return false
	}
	if err := m.w.api.remove(userSystem, id{"nodes", "", m.name}); err != nil {
		return false
	}
	m.exists = false
	m.ready.set(false, m.w.now)
	for _, pod := range m.pods() {
		m.drop(podID(pod.Name))
	}
	return true
}

func (m *machine) status(ready bool) corev1.NodeStatus {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return corev1.NodeStatus{
		NodeInfo:   corev1.NodeSystemInfo{BootID: "boot-" + strconv.Itoa(m.boots)},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
	}
}

// setReady says how the node is, to the API server as well. A node that is back looks for its pods.
func (m *machine) setReady(ready bool) {
	if !m.exists {
		return
	}
	if ready && (!m.w.powered.on || !m.kubelet.running) {
		return
	}
	m.ready.set(ready, m.w.now)
	m.w.api.change(id{"nodes", "", m.name}, func(o client.Object) { o.(*corev1.Node).Status = m.status(ready) })
	if ready {
		for _, pod := range m.pods() {
			k := podID(pod.Name)
			if pod.DeletionTimestamp != nil {
				m.removePod(k)
			} else {
				m.seePod(k)
			}
		}
	}
}

// away takes the node off the network, or down altogether, and brings it back. One that is away already is left alone.
func (m *machine) away(d time.Duration, down bool) bool {
	if !m.exists || !m.ready.on {
		return false
	}
	m.setReady(false)
	if down {
		m.crash()
	}
	m.w.after(d, func() { m.back(down) })
	return true
}

// back brings the node back, rebooted or not.
func (m *machine) back(booted bool) {
	if !m.exists || m.ready.on || !m.w.powered.on {
		return
	}
	if booted || !m.kubelet.running {
		m.boots++
		m.start()
	}
	m.setReady(true)
}

// crash ends every pod without a word, as when the power goes.
func (m *machine) crash() {
	m.kubelet.running = false
	for _, pod := range m.pods() {
		if m.started[podID(pod.Name)] != "" {
			m.report(podID(pod.Name), -1)
		}
	}
}

// pods are those bound to the node.
func (m *machine) pods() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, object := range m.w.api.all("pods", dispatcher.JobsNamespace) {
		if pod := object.(*corev1.Pod); pod.Spec.NodeName == m.name {
			pods = append(pods, pod)
		}
	}
	return pods
}

// seePods is the kubelet's watch of its pods.
func (w *world) seePods(k id, old, now client.Object) {
	if k.kind == "pods" && old == nil {
		w.machine(now.(*corev1.Pod).Spec.NodeName).seePod(k)
	}
}

// seePod starts a pod: the kubelet hears of it, pulls and mounts, and runs it a little later.
func (m *machine) seePod(k id) {
	m.w.after(m.w.between("pod/start/"+m.name, time.Second, 30*time.Second), func() {
		pod, _ := m.w.api.objects[k].(*corev1.Pod)
		if pod == nil || !m.ready.on || m.started[k] != "" || pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil {
			return
		}
		task, _ := m.task(pod.Spec.Containers[0].Args)
		m.started[k] = task.SHA256
		m.w.api.change(k, func(o client.Object) { o.(*corev1.Pod).Status.Phase = corev1.PodRunning })
		for _, hash := range m.started {
			if hash != task.SHA256 {
				m.w.violate(twoLandings, "%s runs %v at once", m.name, m.started)
			}
		}
		m.w.after(m.w.between("pod/run/"+m.name, 0, 20*time.Second), func() { m.run(k) })
	})
}

// removePod kills a pod that is to go, as soon as the node is there to do it.
func (m *machine) removePod(k id) {
	m.w.after(m.w.between("pod/kill", 500*time.Millisecond, 20*time.Second), func() {
		if m.ready.on || !m.exists {
			m.drop(k)
		}
	})
}

func (m *machine) drop(k id) {
	pod, _ := m.w.api.objects[k].(*corev1.Pod)
	delete(m.started, k)
	if pod == nil {
		return
	}
	if err := m.w.api.remove(userSystem, k); err != nil {
		m.w.after(30*time.Second, func() { m.drop(k) })
		return
	}
	m.w.jobs.gone(pod)
}

// report ends a pod. A node that cannot reach the API server reports when it can.
func (m *machine) report(k id, code int32) {
	delete(m.started, k)
	if !m.w.api.up.on || m.exists && !m.ready.on && code >= 0 {
		m.w.after(time.Minute, func() { m.report(k, code) })
		return
	}
	m.w.api.change(k, func(o client.Object) {
		pod := o.(*corev1.Pod)
		pod.Status.Phase = corev1.PodFailed
		if code == 0 {
			pod.Status.Phase = corev1.PodSucceeded
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
	})
}

// run runs the real landing with the pod's own arguments.
func (m *machine) run(k id) {
	pod, _ := m.w.api.objects[k].(*corev1.Pod)
	if pod == nil || m.started[k] == "" || !m.kubelet.running {
		return
	}
	snapshot := m.w.api.configMap(dispatcher.JobsNamespace, pod.Spec.Volumes[0].ConfigMap.Name)
	if snapshot != nil {
		m.disk.files[source] = []byte(snapshot.Data[node.BundleKey])
	}
	m.w.stats[landings]++
	task, ask := m.task(pod.Spec.Containers[0].Args)
	before := m.disk.files[destination]
	result, spent, killed := m.land(task, ask)
	if killed {
		m.w.stats[stoppedLandings]++
		m.w.tell("%s: the landing is killed", m.name)
		m.report(k, -1)
		return
	}
	m.w.landed(m, task, before, result)
	m.w.after(spent+m.w.between("pod/end/"+m.name, 100*time.Millisecond, 3*time.Second), func() {
		if m.started[k] != "" {
			m.report(k, int32(result.Code))
		}
	})
}

// land runs the landing on the model's disk. Its clock moves on when it sleeps.
func (m *machine) land(task node.Task, ask bool) (result node.Result, spent time.Duration, killed bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, stopped := r.(stopped); !stopped {
				panic(r)
			}
			killed = true
		}
	}()
	m.disk.steps, m.disk.stopAt = 0, m.stopAt
	m.stopAt = 0
	lander := node.NewLander("", time.Minute)
	lander.Disk = m.disk
	lander.Now = func() time.Time { return m.w.now.Add(m.off + spent) }
	lander.Sleep = func(_ context.Context, d time.Duration) error { spent += d; return nil }
	lander.Random = func() uint32 { return uint32(m.w.draw("machine/random")) }
	lander.Ask = func(context.Context, netip.AddrPort) ([][]byte, error) {
		if m.minor >= 36 && m.w.now.Add(spent).Sub(m.kubelet.loadedAt) > time.Minute {
			m.kubelet.advertised = m.subjects()
		}
		return m.kubelet.advertised, nil
	}
	if ask {
		task.Confirm, task.ConfirmTimeout = netip.MustParseAddrPort("127.0.0.1:10250"), 2*time.Minute
	}
	result = lander.Land(context.Background(), task)
	return result, spent, false
}

// task reads the arguments that the dispatcher gave the landing.
func (m *machine) task(args []string) (task node.Task, ask bool) {
	task.Source, task.Destination = source, destination
	for i, arg := range args {
		switch arg {
		case "--sha256":
			task.SHA256 = args[i+1]
		case "--destination":
			if args[i+1] != `C:\k\kubelet-ca.crt` {
				panic("the Job writes to " + args[i+1])
			}
		case "--source":
			if !strings.HasSuffix(args[i+1], `\`+node.BundleKey) {
				panic("the Job reads " + args[i+1])
			}
		case "--dry-run":
			task.Mode = node.DryRun
		case "--confirm":
			ask = true
		}
	}
	if task.SHA256 == "" {
		panic(fmt.Sprintf("the Job has no hash: %v", args))
	}
	return task, ask
}
