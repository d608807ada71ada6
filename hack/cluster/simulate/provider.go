package simulate

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"kubelet-ca-courier/hack/cluster/layout"
)

// Provider runs pods as processes of this machine, for virtual-kubelet's pod controller.
type Provider struct {
	ctx      context.Context
	cluster  layout.Cluster
	node     layout.Node
	machine  machine
	client   kubernetes.Interface
	pods     corelisters.PodLister
	recorder record.EventRecorder

	mu     sync.Mutex
	known  map[string]*pod // by namespace and name
	notify func(*corev1.Pod)
}

func key(namespace, name string) string { return namespace + "/" + name }

// podDir is the pod's directory on the node's disk, in the place where the kubelet has it.
func (p *Provider) podDir(object *corev1.Pod) string {
	disk := p.cluster.NodeDir(p.node.Name, "disk")
	if p.node.OS == "windows" {
		disk = p.cluster.NodeDir(p.node.Name, "c")
	}
	return filepath.Join(disk, "var", "lib", "kubelet", "pods", string(object.UID))
}

// NotifyPods registers where the status of pods goes.
func (p *Provider) NotifyPods(_ context.Context, notify func(*corev1.Pod)) { p.notify = notify }

// CreatePod begins to run a pod.
func (p *Provider) CreatePod(_ context.Context, object *corev1.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.newPod(object)
	p.known[key(object.Namespace, object.Name)] = n
	go n.run()
	return nil
}

// UpdatePod takes over the metadata; what else of a pod can change does not matter here.
func (p *Provider) UpdatePod(_ context.Context, object *corev1.Pod) error {
	if n := p.find(object.Namespace, object.Name); n != nil && n.object.UID == object.UID {
		n.mu.Lock()
		n.meta = object.ObjectMeta
		n.mu.Unlock()
	}
	return nil
}

// DeletePod begins to end a pod.
func (p *Provider) DeletePod(_ context.Context, object *corev1.Pod) error {
	n := p.find(object.Namespace, object.Name)
	if n == nil || n.object.UID != object.UID {
		return errdefs.NotFound("the pod does not run here")
	}
	grace := 30 * time.Second
	if seconds := object.DeletionGracePeriodSeconds; seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	n.mu.Lock()
	n.meta = object.ObjectMeta
	n.mu.Unlock()
	go n.terminate(grace)
	return nil
}

// GetPod returns a pod that runs here.
func (p *Provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	n := p.find(namespace, name)
	if n == nil {
		return nil, errdefs.NotFound("the pod does not run here")
	}
	return n.snapshot(), nil
}

// GetPodStatus returns the status of a pod that runs here.
func (p *Provider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	object, err := p.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &object.Status, nil
}

// GetPods returns all pods that run here.
func (p *Provider) GetPods(context.Context) ([]*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var objects []*corev1.Pod
	for _, n := range p.known {
		objects = append(objects, n.snapshot())
	}
	return objects, nil
}

func (p *Provider) find(namespace, name string) *pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[key(namespace, name)]
}

func (p *Provider) forget(n *pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := key(n.object.Namespace, n.object.Name); p.known[k] == n {
		delete(p.known, k)
	}
}

// GetContainerLogs returns what a container wrote.
func (p *Provider) GetContainerLogs(ctx context.Context, namespace, pod, container string, opts api.ContainerLogOpts) (io.ReadCloser, error) {
	file, err := os.Open(p.logPath(namespace, pod, container))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errdefs.NotFound("the container has written nothing")
	}
	if err != nil {
		return nil, err
	}
	if opts.Tail > 0 {
		if err := seekTail(file, opts.Tail); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	if !opts.Follow {
		return file, nil
	}
	done := ctx.Done()
	if n := p.find(namespace, pod); n != nil {
		done = n.done
	}
	return &follower{File: file, done: done, gone: ctx.Done()}, nil
}
