package simulate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/probe"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
	tcpprobe "k8s.io/kubernetes/pkg/probe/tcp"
)

// probe runs the container's probes with the kubelet's own probers while the context lasts.
func (c *container) probe(ctx context.Context) {
	if p := c.spec.StartupProbe; p != nil {
		if !c.follow(ctx, "Startup", p, func(ok bool) bool {
			if !ok {
				c.signal(syscall.SIGKILL)
			}
			return false // the first outcome is the last
		}) {
			return
		}
		c.set(func() { c.started, c.ready = true, c.spec.ReadinessProbe == nil })
	}
	if p := c.spec.LivenessProbe; p != nil {
		go c.follow(ctx, "Liveness", p, func(ok bool) bool {
			if !ok {
				c.signal(syscall.SIGTERM)
			}
			return ok
		})
	}
	if p := c.spec.ReadinessProbe; p != nil {
		c.follow(ctx, "Readiness", p, func(ok bool) bool {
			c.set(func() { c.ready = ok && c.process != nil })
			return true
		})
	}
}

// follow probes over and over and reports each outcome that has passed its threshold, until report returns false. Its
// own result is the last outcome.
func (c *container) follow(ctx context.Context, kind string, p *corev1.Probe, report func(bool) bool) bool {
	if !sleep(ctx, time.Duration(p.InitialDelaySeconds)*time.Second) {
		return false
	}
	streak, last, reported := int32(0), false, kind == "Liveness" // a container is taken for alive, not for ready
	for {
		err := c.check(p)
		if ok := err == nil; ok != last {
			streak, last = 0, ok
		}
		streak++
		if err != nil && ctx.Err() == nil {
			c.pod.provider.recorder.Eventf(c.pod.object, corev1.EventTypeWarning, "Unhealthy", "%s probe failed: %v", kind, err)
		}
		threshold := p.FailureThreshold
		if last {
			threshold = p.SuccessThreshold
		}
		if ctx.Err() != nil {
			return false
		}
		if streak >= threshold && (last != reported || kind == "Startup") {
			if reported = last; !report(last) {
				return last
			}
		}
		if !sleep(ctx, time.Duration(p.PeriodSeconds)*time.Second) {
			return false
		}
	}
}

// check probes once.
func (c *container) check(p *corev1.Probe) error {
	timeout := time.Duration(p.TimeoutSeconds) * time.Second
	ip := c.pod.object.Status.PodIP
	var result probe.Result
	var output string
	var err error
	switch {
	case p.HTTPGet != nil:
		var request *http.Request
		if request, err = httpprobe.NewRequestForHTTPGetAction(p.HTTPGet, c.spec, ip, "probe"); err != nil {
			return err
		}
		result, output, err = httpprobe.New(false).Probe(request, timeout)
	case p.TCPSocket != nil:
		var port int
		if port, err = probe.ResolveContainerPort(p.TCPSocket.Port, c.spec); err != nil {
			return err
		}
		result, output, err = tcpprobe.New().Probe(ip, port, timeout)
	default:
		return errors.New("its kind is not simulated")
	}
	if err == nil && result != probe.Success && result != probe.Warning {
		err = fmt.Errorf("%s: %s", result, output)
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
