package simulate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"kubelet-ca-courier/hack/cluster/process"
)

const (
	// longestMessage and longestLog bound termination messages (k8s.io/kubernetes pkg/kubelet/container/runtime.go).
	longestMessage = 4096
	longestLog     = 2048
	// firstBackoff and longestBackoff bound the time before a container is started again; the kubelet begins with ten
	// seconds (pkg/kubelet/kubelet.go), which tests would wait for.
	firstBackoff   = time.Second
	longestBackoff = 30 * time.Second
)

// container is one container of a pod and the process that it is at the moment.
type container struct {
	pod  *pod
	spec *corev1.Container

	// The fields below belong to the pod's lock.
	state    corev1.ContainerState
	last     corev1.ContainerState
	restarts int32
	id       string
	ready    bool
	started  bool
	process  *os.Process
}

// run runs the container until it has ended for good or the pod is stopped.
func (c *container) run() {
	backoff := firstBackoff
	for {
		began := time.Now()
		ended := c.runOnce()
		if c.pod.stopping() || !restarts(c.pod.object.Spec.RestartPolicy, ended.ExitCode) {
			c.set(func() { c.state = corev1.ContainerState{Terminated: ended} })
			return
		}
		if time.Since(began) > 10*time.Minute {
			backoff = firstBackoff
		}
		c.set(func() {
			c.last = corev1.ContainerState{Terminated: ended}
			c.state = waiting("CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container", backoff))
		})
		select {
		case <-c.pod.stop:
			c.set(func() { c.state = corev1.ContainerState{Terminated: ended} })
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, longestBackoff)
		c.set(func() { c.restarts++ })
	}
}

func restarts(policy corev1.RestartPolicy, exitCode int32) bool {
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && exitCode != 0
}

// runOnce starts the program, waits for its end, and says how it ended.
func (c *container) runOnce() *corev1.ContainerStateTerminated {
	p := c.pod
	id := string(uuid.NewUUID())
	p.mu.Lock()
	c.id = "simulated://" + id
	p.mu.Unlock()
	ended := &corev1.ContainerStateTerminated{ContainerID: c.id, StartedAt: metav1.Now()}
	failed := func(reason string, err error) *corev1.ContainerStateTerminated {
		ended.Reason, ended.Message, ended.ExitCode, ended.FinishedAt = reason, err.Error(), 128, metav1.Now()
		return ended
	}
	env, err := environment(p.ctx, p.provider.client, p.object, c.spec)
	if err != nil {
		return failed("CreateContainerConfigError", err)
	}
	l, undo, err := p.provider.machine.prepare(p.object, c.spec, id, p.volumes, env)
	if err != nil {
		return failed("CreateContainerError", err)
	}
	defer undo()
	log, err := p.provider.openLog(p.object, c.spec.Name)
	if err != nil {
		return failed("CreateContainerError", err)
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return failed("CreateContainerError", err)
	}
	_ = os.Remove(l.message) // of an earlier run; mostly there is none
	state, err := c.execute(l, log)
	if err != nil {
		return failed("StartError", err)
	}
	ended.FinishedAt = metav1.Now()
	ended.ExitCode, ended.Reason = exitCode(state), "Completed"
	if ended.ExitCode != 0 {
		ended.Reason = "Error"
	}
	ended.Message = terminationMessage(l.message, log.Name(), begin, c.spec.TerminationMessagePolicy, ended.ExitCode)
	return ended
}

// execute runs the program in a process group of its own. It dies with this process, as containers die with their
// machine: the kernel sends that signal when the thread that started the program ends, hence the locked thread.
func (c *container) execute(l launch, log *os.File) (*os.ProcessState, error) {
	cmd := exec.Command(l.args[0], l.args[1:]...)
	cmd.Env = append(l.env, process.Mark+"="+c.pod.provider.cluster.Dir, "HOSTNAME="+c.pod.object.Name)
	cmd.Dir, cmd.Stdout, cmd.Stderr = l.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	probing, cancel := context.WithCancel(c.pod.ctx)
	defer cancel()
	c.set(func() {
		c.process = cmd.Process
		c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		c.started, c.ready = c.spec.StartupProbe == nil, c.spec.StartupProbe == nil && c.spec.ReadinessProbe == nil
	})
	go c.probe(probing)
	if c.pod.stopping() {
		c.signal(syscall.SIGTERM) // the pod was stopped in the meantime
	}
	err := cmd.Wait()
	c.pod.mu.Lock()
	c.process, c.ready, c.started = nil, false, false
	c.pod.mu.Unlock()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && l.prefix != "" {
		process.Sweep(l.prefix)
	}
	return cmd.ProcessState, nil
}

// signal sends a signal to the container's processes, if there are any.
func (c *container) signal(signal syscall.Signal) {
	c.pod.mu.Lock()
	defer c.pod.mu.Unlock()
	if c.process != nil {
		_ = syscall.Kill(-c.process.Pid, signal) // it may be about to end
	}
}

// set changes the container and publishes the pod's status.
func (c *container) set(change func()) {
	c.pod.mu.Lock()
	change()
	c.pod.mu.Unlock()
	c.pod.publish()
}

// status is the container's part of the pod's status. The caller holds the pod's lock.
func (c *container) status() corev1.ContainerStatus {
	started := c.started
	return corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: "simulated://" + c.spec.Image, ContainerID: c.id,
		State: c.state, LastTerminationState: c.last, RestartCount: c.restarts, Ready: c.ready, Started: &started,
	}
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// exitCode is 128 and the signal for a program that a signal ended, as container runtimes report it.
func exitCode(state *os.ProcessState) int32 {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(state.ExitCode())
}

// terminationMessage is what the container left in its file or, if its policy says so and it failed, the end of its log.
func terminationMessage(file, log string, begin int64, policy corev1.TerminationMessagePolicy, exitCode int32) string {
	if data, err := os.ReadFile(file); err == nil && len(data) > 0 {
		return string(data[:min(len(data), longestMessage)])
	}
	if policy != corev1.TerminationMessageFallbackToLogsOnError || exitCode == 0 {
		return ""
	}
	data, err := os.ReadFile(log)
	if err != nil || begin > int64(len(data)) {
		return ""
	}
	data = data[begin:]
	data = data[max(0, len(data)-longestLog):]
	lines := bytes.SplitAfter(data, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-80):], nil))
}

// logPath is where a container's output goes.
func (p *Provider) logPath(namespace, pod, container string) string {
	return p.cluster.Path("logs", "pods", strings.Join([]string{namespace, pod, container}, "_")+".log")
}

func (p *Provider) openLog(pod *corev1.Pod, container string) (*os.File, error) {
	path := p.logPath(pod.Namespace, pod.Name, container)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
}
