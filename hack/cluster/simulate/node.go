// Package simulate is a node that is simulated, on virtual-kubelet's controllers: it registers, sends heartbeats, holds
// a lease, and runs the pods that are bound to it as processes of this machine. What decides a test is real: the
// programs, their files and exit codes, the layout of volumes, who the kubelet's server lets in.
package simulate

import (
	"context"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/log"
	"github.com/virtual-kubelet/virtual-kubelet/log/klogv2"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"kubelet-ca-courier/hack/cluster/kubeletserver"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/process"
)

// podWorkers is how many pods a node handles at once.
const podWorkers = 10

// Run runs a node until the context ends.
func Run(ctx context.Context, client kubernetes.Interface, c layout.Cluster, name string) error {
	ctx, cancel := context.WithCancel(log.WithLogger(ctx, klogv2.New(nil)))
	defer cancel()
	record, err := c.LoadNode(name)
	if err != nil {
		return err
	}
	listeners, err := listen(record)
	if err != nil {
		return err
	}
	pods := informers.NewSharedInformerFactoryWithOptions(client, time.Minute, nodeutil.PodInformerFilter(name))
	provider := newProvider(ctx, client, c, record, pods.Core().V1().Pods())
	nodes, err := newNodeController(client, c, record)
	if err != nil {
		return err
	}
	podController, err := newPodController(client, provider, pods.Core().V1().Pods())
	if err != nil {
		return err
	}
	pki := func(file string) string { return c.NodeDir(name, file) }
	server, err := kubeletserver.New(clientCAFile(c, record), pki("kubelet.crt"), pki("kubelet.key"), name, client)
	if err != nil {
		return err
	}
	pods.Start(ctx.Done())
	failed := make(chan error, 3)
	go func() { failed <- server.Serve(ctx, provider.handler(), listeners...) }()
	go func() { failed <- podController.Run(ctx, podWorkers) }()
	select {
	case err := <-failed:
		return err
	case <-podController.Ready():
	}
	go func() { failed <- nodes.Run(ctx) }()
	err = <-failed
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// clientCAFile is the file that says which clients the kubelet's server trusts.
func clientCAFile(c layout.Cluster, n layout.Node) string {
	if n.OS == "windows" {
		return c.NodeDir(n.Name, "c", "k", "kubelet-ca.crt")
	}
	return c.NodeDir(n.Name, "kubelet-ca.crt")
}

// listen opens the kubelet's port where the node itself looks for it, and where the API server does.
func listen(n layout.Node) ([]net.Listener, error) {
	var listeners []net.Listener
	for _, address := range []string{net.JoinHostPort(n.Local, strconv.Itoa(n.LocalPort)), net.JoinHostPort(n.Address, strconv.Itoa(n.Port))} {
		if len(listeners) > 0 && listeners[0].Addr().String() == address {
			continue
		}
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}

func newProvider(ctx context.Context, client kubernetes.Interface, c layout.Cluster, n layout.Node, pods coreinformers.PodInformer) *Provider {
	events := record.NewBroadcaster()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	context.AfterFunc(ctx, events.Shutdown)
	p := &Provider{
		ctx: ctx, cluster: c, node: n, client: client, pods: pods.Lister(), known: map[string]*pod{},
		recorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: n.Name}),
	}
	p.machine = windows{c, n}
	process.Sweep("WINEPREFIX=" + c.NodeDir(n.Name, "wine")) // of a life before, cut off
	if n.OS == "linux" {
		p.machine = &linux{cluster: c, node: n}
	}
	return p
}

// handler has the routes of pods that are simulated: `kubectl logs` goes through them.
func (p *Provider) handler() http.Handler {
	return api.PodHandler(api.PodHandlerConfig{
		GetContainerLogs:      p.GetContainerLogs,
		GetPods:               p.GetPods,
		GetPodsFromKubernetes: func(context.Context) ([]*corev1.Pod, error) { return p.pods.List(labels.Everything()) },
	}, true)
}

// newPodController leaves references to ConfigMaps and Secrets to the provider: the controller would list all of them,
// which the Node authorizer refuses. The informers that it demands are never started.
func newPodController(client kubernetes.Interface, p *Provider, pods coreinformers.PodInformer) (*node.PodController, error) {
	idle := informers.NewSharedInformerFactory(client, 0).Core().V1()
	return node.NewPodController(node.PodControllerConfig{
		PodClient: client.CoreV1(), PodInformer: pods, EventRecorder: &record.FakeRecorder{}, Provider: p,
		ConfigMapInformer: idle.ConfigMaps(), SecretInformer: idle.Secrets(), ServiceInformer: idle.Services(),
		SkipDownwardAPIResolution: true,
	})
}

func newNodeController(client kubernetes.Interface, c layout.Cluster, n layout.Node) (*node.NodeController, error) {
	return node.NewNodeController(watcher{c, n}, object(n), client.CoreV1().Nodes(),
		node.WithNodeEnableLeaseV1(nodeutil.NodeLeaseV1Client(client), node.DefaultLeaseDuration),
		node.WithNodePingInterval(time.Second))
}

// watcher follows the node's record: its boot and whether it is Ready.
type watcher struct {
	cluster layout.Cluster
	node    layout.Node
}

// Ping says that the node is alive. A node that is not is one whose process is paused or gone.
func (w watcher) Ping(context.Context) error { return nil }

// NotifyNodeStatus calls back whenever the record has changed.
func (w watcher) NotifyNodeStatus(ctx context.Context, changed func(*corev1.Node)) {
	go func() {
		for sleep(ctx, 200*time.Millisecond) {
			now, err := w.cluster.LoadNode(w.node.Name)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Cannot read the node's record")
				continue
			}
			if !reflect.DeepEqual(now, w.node) {
				w.node = now
				changed(object(now))
			}
		}
	}()
}
