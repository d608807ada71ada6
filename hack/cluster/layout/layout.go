// Package layout says where a local cluster keeps what: one directory for its state, certificates, logs and simulated
// disks, and one pair of loopback networks for its addresses. Both the command line and the processes that it starts
// read it, so it imports nothing but the standard library.
package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Cluster is the record of a local cluster, kept as cluster.json in its directory.
type Cluster struct {
	// Dir is the absolute path of the cluster's directory.
	Dir string `json:"dir"`
	// Slot numbers the cluster's loopback networks; see Network.
	Slot int `json:"slot"`
	// APIServer is the URL of kube-apiserver.
	APIServer string `json:"apiServer"`
	// Ports are the ports of the control plane's processes on its address, by purpose.
	Ports map[string]int `json:"ports"`
	// Signer is the name of the signer whose certificate kube-apiserver shows to kubelets.
	Signer string `json:"signer"`
}

// Node is the record of one simulated node. The node's process follows changes of BootID and NotReady.
type Node struct {
	Name string `json:"name"`
	// OS is windows or linux.
	OS string `json:"os"`
	// MountStyle is bind (containerd 1.7 and later) or sandbox (containerd 1.6); Windows only.
	MountStyle string `json:"mountStyle,omitempty"`
	// KubeletVersion is what the node reports.
	KubeletVersion string `json:"kubeletVersion"`
	// Index numbers the node within the cluster; its addresses follow from it.
	Index int `json:"index"`
	// Local is the loopback address on which the node's kubelet server listens, as the node's own 127.0.0.1 would.
	Local string `json:"local"`
	// LocalPort is the port there: 10250, unless something on this machine has it on all addresses.
	LocalPort int `json:"localPort"`
	// Address is the address that the node advertises.
	Address string `json:"address"`
	// Port is the advertised port of the kubelet's server.
	Port int `json:"port"`
	// Program says how the node runs Windows programs: wine or native.
	Program string `json:"program,omitempty"`
	// BootID changes when the node "reboots".
	BootID string `json:"bootID"`
	// NotReady makes the node report Ready=False.
	NotReady bool `json:"notReady,omitempty"`
}

// Network is the pair of loopback networks of a cluster. Loopback addresses need no privilege and no clean-up, and the
// range 127.64.0.0 to 127.191.255.255 has room for as many clusters as a machine can carry.
type Network struct{ Slot int }

// Slots is how many clusters can run side by side.
const Slots = 32

// ServiceCIDR is the range of ClusterIPs.
func (n Network) ServiceCIDR() string { return fmt.Sprintf("127.%d.0.0/16", 64+n.Slot) }

// KubernetesServiceIP is the address of the Service kubernetes.default: the first of the range.
func (n Network) KubernetesServiceIP() string { return fmt.Sprintf("127.%d.0.1", 64+n.Slot) }

// ControlPlane is the address of etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
func (n Network) ControlPlane() string { return fmt.Sprintf("127.%d.0.1", 128+n.Slot) }

// Node is the address of the node with the index.
func (n Network) Node(index int) string {
	return fmt.Sprintf("127.%d.1.%d", 128+n.Slot, 1+index)
}

// Pod is the address of the pod with the serial number on the node with the index.
func (n Network) Pod(index, serial int) string {
	return fmt.Sprintf("127.%d.%d.%d", 128+n.Slot, 2+index, 1+serial%250)
}

// MaxNodes is how many simulated nodes the networks have room for.
const MaxNodes = 250

// Path joins elements to the cluster's directory.
func (c Cluster) Path(elements ...string) string {
	return filepath.Join(append([]string{c.Dir}, elements...)...)
}

// Kubeconfig is the administrator's kubeconfig.
func (c Cluster) Kubeconfig() string { return c.Path("kubeconfig") }

// Bin is where the programs that the cluster runs are kept.
func (c Cluster) Bin(name string) string { return c.Path("bin", name) }

// PKI is a file among the certificates and keys.
func (c Cluster) PKI(name string) string { return c.Path("pki", name) }

// NodeDir is a path within a node's directory.
func (c Cluster) NodeDir(node string, elements ...string) string {
	return c.Path(append([]string{"nodes", node}, elements...)...)
}

// Load reads the cluster's record. The error wraps fs.ErrNotExist where there is no cluster.
func Load(dir string) (Cluster, error) {
	var c Cluster
	return c, readJSON(filepath.Join(dir, "cluster.json"), &c)
}

// Save writes the cluster's record.
func (c Cluster) Save() error { return writeJSON(c.Path("cluster.json"), c) }

// LoadNode reads a node's record. The error wraps fs.ErrNotExist where there is no such node.
func (c Cluster) LoadNode(name string) (Node, error) {
	var n Node
	return n, readJSON(c.NodeDir(name, "node.json"), &n)
}

// SaveNode writes a node's record.
func (c Cluster) SaveNode(n Node) error {
	if err := os.MkdirAll(c.NodeDir(n.Name), 0o755); err != nil {
		return err
	}
	return writeJSON(c.NodeDir(n.Name, "node.json"), n)
}

// Nodes lists the simulated nodes by name.
func (c Cluster) Nodes() ([]Node, error) {
	entries, err := os.ReadDir(c.Path("nodes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var nodes []Node
	for _, e := range entries {
		n, err := c.LoadNode(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON replaces the file whole, since other processes read it at any time.
func writeJSON(path string, from any) error {
	data, err := json.MarshalIndent(from, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(data, '\n'), 0o644)
}

// WriteFile replaces the file whole: a reader sees the old content or the new.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) // fails once renamed, which is as it should be
	_, err = temporary.Write(data)
	if err := errors.Join(err, temporary.Chmod(mode), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
