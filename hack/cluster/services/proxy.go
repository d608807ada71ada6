// Package services stands in for kube-proxy: a user-space proxy that listens on the ClusterIP of each Service with a
// selector and forwards TCP connections to its Ready pods. The ClusterIPs are loopback addresses, so it needs no
// privilege, and webhooks are reached through the very clientConfig.service that is shipped.
//
// It looks at pods rather than EndpointSlices, which may not hold loopback addresses.
package services

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"kubelet-ca-courier/hack/cluster/relay"
)

// Proxy forwards connections to Services.
type Proxy struct {
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	changed  chan struct{}
	open     map[string]*forward // by address
}

// Run proxies until the context ends.
func Run(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	services, pods := factory.Core().V1().Services(), factory.Core().V1().Pods()
	p := &Proxy{services: services.Lister(), pods: pods.Lister(), changed: make(chan struct{}, 1), open: map[string]*forward{}}
	poke := func() {
		select {
		case p.changed <- struct{}{}:
		default: // it is going to look anyway
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(_, _ any) { poke() }, DeleteFunc: func(any) { poke() },
	}
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), pods.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
			if err := p.sync(ctx); err != nil {
				return err
			}
		}
	}
}

// sync opens a listener for each Service port with a backend, and closes those without: a connection to a Service that
// nobody serves is refused, as kube-proxy does it.
func (p *Proxy) sync(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	wanted, err := p.backends()
	if err != nil {
		return err
	}
	for address, f := range p.open {
		if _, ok := wanted[address]; !ok {
			logger.Info("No backends", "address", address)
			f.close()
			delete(p.open, address)
		}
	}
	for address, backends := range wanted {
		f, ok := p.open[address]
		if !ok {
			listener, err := net.Listen("tcp", address)
			if err != nil {
				logger.Error(err, "Cannot listen for a Service", "address", address)
				continue
			}
			f = &forward{listener: listener}
			p.open[address] = f
			go f.serve(ctx)
		}
		f.set(ctx, address, backends)
	}
	return nil
}

// backends returns the addresses behind each Service port that has any.
func (p *Proxy) backends() (map[string][]string, error) {
	services, err := p.services.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Selector) == 0 {
			continue
		}
		pods, err := p.pods.Pods(s.Namespace).List(labels.SelectorFromSet(s.Spec.Selector))
		if err != nil {
			return nil, err
		}
		for _, port := range s.Spec.Ports {
			address := net.JoinHostPort(s.Spec.ClusterIP, strconv.Itoa(int(port.Port)))
			for _, pod := range pods {
				if target, ok := targetPort(pod, port); ok && serves(pod) {
					all[address] = append(all[address], net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(target)))
				}
			}
		}
	}
	return all, nil
}

// serves tells whether a pod takes new connections: Ready, and not on its way out.
func serves(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// targetPort resolves the port of a Service to that of a pod's container, by number or by name.
func targetPort(pod *corev1.Pod, port corev1.ServicePort) (int, bool) {
	if port.Protocol != corev1.ProtocolTCP && port.Protocol != "" {
		return 0, false
	}
	if name := port.TargetPort.StrVal; name != "" {
		for _, c := range pod.Spec.Containers {
			for _, p := range c.Ports {
				if p.Name == name {
					return int(p.ContainerPort), true
				}
			}
		}
		return 0, false
	}
	if port.TargetPort.IntVal != 0 {
		return int(port.TargetPort.IntVal), true
	}
	return int(port.Port), true
}

// forward is one listener and the backends behind it.
type forward struct {
	listener net.Listener
	mu       sync.Mutex
	backends []string
}

func (f *forward) set(ctx context.Context, address string, backends []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fmt.Sprint(f.backends) != fmt.Sprint(backends) {
		klog.FromContext(ctx).Info("Backends", "address", address, "backends", backends)
	}
	f.backends = backends
}

func (f *forward) close() { _ = f.listener.Close() }

func (f *forward) serve(ctx context.Context) {
	for {
		conn, err := f.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Accept", "address", f.listener.Addr())
			continue
		}
		go f.handle(ctx, conn)
	}
}

// handle connects to a backend at random, and to another when that one does not answer.
func (f *forward) handle(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	f.mu.Lock()
	backends := append([]string(nil), f.backends...)
	f.mu.Unlock()
	rand.Shuffle(len(backends), func(i, j int) { backends[i], backends[j] = backends[j], backends[i] })
	for _, address := range backends {
		dialer := net.Dialer{Timeout: time.Second}
		backend, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Backend does not answer", "backend", address)
			continue
		}
		relay.Join(conn, backend)
		return
	}
}
