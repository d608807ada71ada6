package simulate

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// pod is a pod that was bound to the node.
type pod struct {
	provider *Provider
	object   *corev1.Pod // never changed after the pod began to run
	volumes  *volumes
	ctx      context.Context // ends when the pod's processes have ended
	cancel   context.CancelFunc
	stop     chan struct{} // closed when the pod is to end
	stopOnce sync.Once
	done     chan struct{} // closed when the pod has ended

	publishing sync.Mutex
	mu         sync.Mutex
	meta       metav1.ObjectMeta // as the API server has it by now
	phase      corev1.PodPhase
	reason     string
	message    string
	inits      []*container
	containers []*container
}

func (p *Provider) newPod(object *corev1.Pod) *pod {
	ctx, cancel := context.WithCancel(p.ctx)
	object.Status.HostIP = p.node.Address
	object.Status.PodIP = p.node.Address
	if !object.Spec.HostNetwork {
		object.Status.PodIP = p.machine.podIP()
	}
	n := &pod{
		provider: p, object: object, ctx: ctx, cancel: cancel, meta: object.ObjectMeta, phase: corev1.PodPending,
		stop: make(chan struct{}), done: make(chan struct{}),
		volumes: &volumes{client: p.client, pod: object, dir: filepath.Join(p.podDir(object), "volumes"), tokens: map[string]token{}},
	}
	for i := range object.Spec.InitContainers {
		n.inits = append(n.inits, &container{pod: n, spec: &object.Spec.InitContainers[i], state: waiting("PodInitializing", "")})
	}
	for i := range object.Spec.Containers {
		n.containers = append(n.containers, &container{pod: n, spec: &object.Spec.Containers[i], state: waiting("ContainerCreating", "")})
	}
	return n
}

// run takes the pod from its beginning to its end.
func (n *pod) run() {
	defer close(n.done)
	defer n.cancel()
	defer func() { _ = os.RemoveAll(n.provider.podDir(n.object)) }() // what remains goes with the node's directory
	if n.refuse() {
		return
	}
	n.publish()
	if !n.mount() || !n.pull() {
		return
	}
	go n.refresh()
	for _, c := range n.inits {
		c.run()
		if c.state.Terminated.ExitCode != 0 {
			n.end(corev1.PodFailed)
			return
		}
	}
	var running sync.WaitGroup
	for _, c := range n.containers {
		running.Go(c.run)
	}
	running.Wait()
	phase := corev1.PodSucceeded
	for _, c := range n.containers {
		if c.state.Terminated.ExitCode != 0 {
			phase = corev1.PodFailed
		}
	}
	n.end(phase)
}

// refuse fails pods that the node cannot run, as the kubelet's own admission does, and those that ran before the node
// was restarted and must not run twice.
func (n *pod) refuse() bool {
	status := n.object.Status
	switch os := n.object.Spec.OS; {
	case os != nil && string(os.Name) != n.provider.node.OS:
		n.reason, n.message = "PodOSNotSupported", "the node runs "+n.provider.node.OS
	case status.Phase == corev1.PodRunning && n.object.Spec.RestartPolicy == corev1.RestartPolicyNever:
		n.reason = "ContainerStatusUnknown"
		n.message = "The container could not be located when the pod was terminated"
		for _, c := range n.containers {
			c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: n.reason, Message: n.message, FinishedAt: metav1.Now()}}
		}
	default:
		return false
	}
	n.end(corev1.PodFailed)
	return true
}

// mount waits until every volume can be written.
func (n *pod) mount() bool {
	for {
		err := n.volumes.write(n.ctx)
		if err == nil {
			return true
		}
		n.provider.recorder.Event(n.object, corev1.EventTypeWarning, "FailedMount", err.Error())
		select {
		case <-n.stop:
			return false
		case <-time.After(time.Second):
		}
	}
}

// refresh keeps the volumes up to date while the pod runs.
func (n *pod) refresh() {
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(refreshEvery):
			if err := n.volumes.write(n.ctx); err != nil && n.ctx.Err() == nil {
				n.provider.recorder.Event(n.object, corev1.EventTypeWarning, "FailedMount", err.Error())
			}
		}
	}
}

// pull waits for ever where an image is not one of those that are simulated, as a wrong image name would.
func (n *pod) pull() bool {
	all := append(append([]*container(nil), n.inits...), n.containers...)
	known := true
	for _, c := range all {
		if !n.provider.machine.has(c.spec.Image) {
			known = false
			c.set(func() { c.state = waiting("ImagePullBackOff", "there is no image "+c.spec.Image) })
		}
	}
	if !known {
		<-n.stop
	}
	return known
}

func (n *pod) stopping() bool {
	select {
	case <-n.stop:
		return true
	default:
		return false
	}
}

// terminate ends the pod: SIGTERM, once the preStop hooks are through, and SIGKILL after the grace period. Then the
// status tells how its containers ended, and the object is deleted, which says that nothing of the pod runs any longer.
func (n *pod) terminate(grace time.Duration) {
	killing := time.AfterFunc(grace, func() { n.signalAll(syscall.SIGKILL) })
	sleep(n.ctx, min(grace, n.preStop()))
	n.stopOnce.Do(func() { close(n.stop) })
	n.signalAll(syscall.SIGTERM)
	<-n.done
	killing.Stop()
	n.provider.forget(n)
	n.publish()
	published := func(context.Context) (bool, error) {
		current, err := n.provider.pods.Pods(n.object.Namespace).Get(n.object.Name)
		return err != nil || current.UID != n.object.UID || ended(current), nil
	}
	_ = wait.PollUntilContextTimeout(n.provider.ctx, 20*time.Millisecond, 2*time.Second, true, published) // or else without
	err := n.provider.client.CoreV1().Pods(n.object.Namespace).Delete(n.provider.ctx, n.object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(n.object.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		n.provider.recorder.Event(n.object, corev1.EventTypeWarning, "FailedDelete", err.Error())
	}
}

// preStop is the longest of the containers' preStop sleeps, which run side by side; other hooks are not simulated.
func (n *pod) preStop() time.Duration {
	var longest int64
	for _, c := range n.containers {
		if l := c.spec.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.Sleep != nil {
			longest = max(longest, l.PreStop.Sleep.Seconds)
		}
	}
	return time.Duration(longest) * time.Second
}

func ended(pod *corev1.Pod) bool {
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Terminated == nil {
			return false
		}
	}
	return true
}

func (n *pod) signalAll(signal syscall.Signal) {
	for _, c := range append(append([]*container(nil), n.inits...), n.containers...) {
		c.signal(signal)
	}
}

func (n *pod) end(phase corev1.PodPhase) {
	n.mu.Lock()
	n.phase = phase
	n.mu.Unlock()
	n.publish()
}

// publish hands the pod's status to the pod controller, which writes it to the API server; one at a time, so that an
// older status never follows a newer one.
func (n *pod) publish() {
	n.publishing.Lock()
	defer n.publishing.Unlock()
	n.provider.notify(n.snapshot())
}

// snapshot is the pod as the node sees it.
func (n *pod) snapshot() *corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	object := n.object.DeepCopy()
	n.meta.DeepCopyInto(&object.ObjectMeta)
	s := &object.Status
	s.ContainerStatuses, s.InitContainerStatuses = nil, nil
	ready, started := true, false
	for _, c := range n.inits {
		s.InitContainerStatuses = append(s.InitContainerStatuses, c.status())
	}
	for _, c := range n.containers {
		status := c.status()
		s.ContainerStatuses = append(s.ContainerStatuses, status)
		ready = ready && status.Ready
		started = started || status.State.Waiting == nil || status.RestartCount > 0
	}
	if n.phase == corev1.PodPending && started {
		n.phase = corev1.PodRunning
	}
	s.Phase, s.Reason, s.Message = n.phase, n.reason, n.message
	s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	s.HostIPs = []corev1.HostIP{{IP: s.HostIP}}
	if s.StartTime == nil {
		now := metav1.Now()
		n.object.Status.StartTime, s.StartTime = &now, &now
	}
	setCondition(s, corev1.PodInitialized, true)
	setCondition(s, corev1.ContainersReady, ready && n.phase == corev1.PodRunning)
	setCondition(s, corev1.PodReady, ready && n.phase == corev1.PodRunning)
	n.object.Status.Conditions = s.Conditions // keeps the times of transition
	return object
}

func setCondition(s *corev1.PodStatus, kind corev1.PodConditionType, is bool) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == kind {
			if c.Status != status {
				c.Status, c.LastTransitionTime = status, metav1.Now()
			}
			return
		}
	}
	s.Conditions = append(s.Conditions, corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: metav1.Now()})
}
