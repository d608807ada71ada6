package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"kubelet-ca-courier/hack/cluster/controlplane"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/pki"
	"kubelet-ca-courier/hack/cluster/process"
)

// launcher starts the kubelet.
//
//go:embed kubelet.sh
var launcher []byte

// realKubelet runs the real kubelet with the client-CA file of a simulated node. It needs an address that is not
// loopback, since kube-apiserver proxies to none: hence the network namespace, and root.
func (a *app) realKubelet() *cobra.Command {
	cmd := &cobra.Command{Use: "real-kubelet NODE", Args: exactly("NODE"),
		Short: "run the real kubelet on the client-CA file of a simulated Windows node, as node kubelet-NODE (root)"}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, table, n, err := a.loadNode(args[0])
		if err != nil {
			return err
		}
		if n.OS != "windows" {
			return usageError{fmt.Errorf("%s runs %s, which has no client-CA file of its own", n.Name, n.OS)}
		}
		if err := mayMakeNamespaces(); err != nil {
			return err
		}
		store, err := a.store()
		if err != nil {
			return err
		}
		programs, err := store.Ensure(cmd.Context(), "kubelet")
		if err != nil {
			return err
		}
		k := kubelet{cluster: c, node: n}
		if r, err := table.Find(k.name()); err == nil && r.Alive() {
			return nil
		}
		if r, err := table.Find("cri-" + n.Name); err == nil {
			r.Stop(restartGrace) // it listens on the old link
		}
		if err := k.prepare(cmd.Context()); err != nil {
			return err
		}
		if err := table.Start(agent(c, "cri-"+n.Name, k.path("cri.sock"), k.hostAddress()+":6443")); err != nil {
			return err
		}
		err = a.await(cmd.Context(), table, "cri-"+n.Name, func(ctx context.Context) error { return dial(ctx, k.hostAddress()+":6443") })
		if err != nil {
			return err
		}
		if err := table.Start(k.spec(programs["kubelet"])); err != nil {
			return err
		}
		return a.await(cmd.Context(), table, k.name(), func(ctx context.Context) error {
			_, err := a.kubectl(ctx, c, nil, "wait", "node", k.name(), "--for=condition=Ready", "--timeout=1s")
			return err
		})
	}
	return cmd
}

func mayMakeNamespaces() error {
	if os.Geteuid() != 0 {
		return hint(errors.New("the real kubelet needs root: it gets a network namespace of its own"), "run this as root; the simulated nodes do without")
	}
	for _, program := range []string{"ip", "nsenter", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return hint(fmt.Errorf("there is no program %s", program), "apt-get install iproute2 util-linux")
		}
	}
	return nil
}

// kubelet is a real kubelet beside a simulated node.
type kubelet struct {
	cluster layout.Cluster
	node    layout.Node
}

func (k kubelet) name() string { return "kubelet-" + k.node.Name }

func (k kubelet) path(elements ...string) string {
	return k.cluster.Path(append([]string{"kubelets", k.node.Name}, elements...)...)
}

// namespace and device are short, since a device's name has room for 15 characters.
func (k kubelet) namespace() string {
	return fmt.Sprintf("courier-%d-%d", k.cluster.Slot, k.node.Index)
}
func (k kubelet) device() string {
	return fmt.Sprintf("courier%d-%d", k.cluster.Slot, k.node.Index)
}

// hostAddress and address are the two ends of the link. The network is the one set aside for tests of network devices
// (RFC 2544), which no machine has a route to.
func (k kubelet) hostAddress() string { return k.linkAddress(1) }
func (k kubelet) address() string     { return k.linkAddress(2) }

func (k kubelet) linkAddress(end int) string {
	return fmt.Sprintf("198.18.%d.%d", 4*k.cluster.Slot+k.node.Index/64, 4*(k.node.Index%64)+end)
}

// prepare makes the namespace and what the kubelet reads.
func (k kubelet) prepare(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(k.path("cri.sock")), os.MkdirAll(k.path("root"), 0o755)); err != nil {
		return err
	}
	// The record comes first: what it names is removed even if it was never made.
	if err := os.WriteFile(k.path("namespace"), []byte(k.namespace()), 0o644); err != nil {
		return err
	}
	if err := removeNamespace(k.namespace()); err != nil {
		return err
	}
	for _, args := range []string{
		"netns add " + k.namespace(),
		"link add " + k.device() + " type veth peer name eth0 netns " + k.namespace(),
		"address add " + k.hostAddress() + "/30 dev " + k.device(),
		"link set " + k.device() + " up",
		"-n " + k.namespace() + " link set lo up",
		"-n " + k.namespace() + " address add " + k.address() + "/30 dev eth0",
		"-n " + k.namespace() + " link set eth0 up",
		"-n " + k.namespace() + " route add default via " + k.hostAddress(), // the kubelet looks for its address there
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
		}
	}
	return k.configure()
}

// configure writes the kubelet's certificate, kubeconfig and configuration.
func (k kubelet) configure() error {
	ca, err := pki.LoadAuthority(k.cluster.PKI("kubelet-ca"))
	if err != nil {
		return err
	}
	user := pki.Request{CommonName: "system:node:" + k.name(), Organizations: []string{"system:nodes"}}
	serving := user
	serving.Hosts = []string{k.address(), k.name()}
	if err := ca.Issue(k.path("kubelet"), serving); err != nil {
		return err
	}
	if err := controlplane.WriteKubeconfigFor(k.cluster, k.path("kubeconfig"), user, "https://"+k.hostAddress()+":6443"); err != nil {
		return err
	}
	if err := os.WriteFile(k.path("kubelet.sh"), launcher, 0o755); err != nil {
		return err
	}
	return os.WriteFile(k.path("config.yaml"), fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %q}
authorization: {mode: Webhook}
tlsCertFile: %q
tlsPrivateKeyFile: %q
containerRuntimeEndpoint: %q
volumePluginDir: %q
podLogsDir: %q
registerWithTaints: [{key: kubelet-ca-courier/not-for-pods, effect: NoSchedule}]
failCgroupV1: false
failSwapOn: false
cgroupsPerQOS: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
resolvConf: ""
`, k.cluster.NodeDir(k.node.Name, "c", "k", "kubelet-ca.crt"), k.path("kubelet.crt"), k.path("kubelet.key"),
		"unix://"+k.path("cri.sock"), k.path("plugins"), k.path("pod-logs")), 0o644)
}

func (k kubelet) spec(program string) process.Spec {
	return process.Spec{Name: k.name(), Args: []string{k.path("kubelet.sh"), k.namespace(), k.path(), program,
		"--config=" + k.path("config.yaml"), "--kubeconfig=" + k.path("kubeconfig"), "--root-dir=" + k.path("root"),
		"--hostname-override=" + k.name(), "--node-ip=" + k.address(),
	}}
}

// removeNamespaces removes the network namespaces of the cluster's real kubelets, with the links into them.
func removeNamespaces(c layout.Cluster) error {
	records, err := filepath.Glob(c.Path("kubelets", "*", "namespace"))
	if err != nil {
		return err
	}
	for _, path := range records {
		name, readErr := os.ReadFile(path)
		if readErr != nil {
			return readErr
		}
		err = errors.Join(err, removeNamespace(string(name)))
	}
	return err
}

func removeNamespace(name string) error {
	if _, err := os.Stat("/run/netns/" + name); err != nil {
		return nil
	}
	if out, err := exec.Command("ip", "netns", "delete", name).CombinedOutput(); err != nil {
		return fmt.Errorf("remove the network namespace %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
