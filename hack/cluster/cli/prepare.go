package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"kubelet-ca-courier/hack/cluster/binaries"
	"kubelet-ca-courier/hack/cluster/controlplane"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/pki"
	"kubelet-ca-courier/hack/cluster/process"
)

// completeTemplate checks what was asked for, and decides what was left open.
func completeTemplate(n *layout.Node) error {
	switch n.OS {
	case "windows":
	case "linux":
		n.MountStyle, n.Program = "", "native"
	default:
		return usageError{fmt.Errorf("a node's operating system is windows or linux, not %q", n.OS)}
	}
	if n.OS == "windows" && n.MountStyle != "bind" && n.MountStyle != "sandbox" {
		return usageError{fmt.Errorf("a mount style is bind or sandbox, not %q", n.MountStyle)}
	}
	if n.Address != "" && net.ParseIP(n.Address) == nil {
		return usageError{fmt.Errorf("not an IP address: %q", n.Address)}
	}
	missing := missingForWine()
	switch n.Program {
	case "native":
	case "auto":
		n.Program = "native"
		if missing == nil {
			n.Program = "wine"
		}
	case "wine":
		if missing != nil {
			return hint(missing, "apt-get install wine wine64 gcc-mingw-w64-x86-64, or use --program native")
		}
	default:
		return usageError{fmt.Errorf("a program runs as wine, native or auto, not %q", n.Program)}
	}
	return nil
}

// missingForWine says what hack/wine/prefix.sh would miss.
func missingForWine() error {
	for _, program := range []string{"wine", "wineserver", "x86_64-w64-mingw32-gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not installed", program)
		}
	}
	return nil
}

// buildPrograms builds what the node's containers run.
func (a *app) buildPrograms(ctx context.Context, c layout.Cluster, n layout.Node) error {
	store, err := a.store()
	if err != nil {
		return err
	}
	root := filepath.Join(store.Source, "..", "..")
	own := binaries.Own{Name: "courier-node", Module: root, Package: "./cmd/courier-node"}
	switch {
	case n.OS == "linux":
		own = binaries.Own{Name: "courier", Module: root, Package: "./cmd/courier"}
	case n.Program == "wine":
		own.Name, own.Windows = "courier-node.exe", true
	}
	return store.BuildOwn(ctx, c.Path("bin"), own)
}

// nodeName is what a DNS subdomain may be, which is what Kubernetes asks of node names.
var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func checkNodeNames(names []string) error {
	if len(names) == 0 {
		return usageError{errors.New("missing argument NAME")}
	}
	for _, name := range names {
		if len(name) > 253 || !nodeName.MatchString(name) {
			return usageError{fmt.Errorf("not a node name: %q", name)}
		}
	}
	return nil
}

// newNode gives the node a name and addresses that no other node of the cluster has.
func newNode(c layout.Cluster, name string, n layout.Node) (layout.Node, error) {
	others, err := c.Nodes()
	if err != nil {
		return n, err
	}
	taken := map[int]bool{}
	for _, other := range others {
		taken[other.Index] = true
	}
	for n.Index = 0; taken[n.Index]; n.Index++ {
		if n.Index == layout.MaxNodes-1 {
			return n, hint(fmt.Errorf("the cluster has %d simulated nodes, and room for no more", layout.MaxNodes), "test/scale simulates nodes by the thousand, without disks")
		}
	}
	n.Name, n.BootID = name, newBootID()
	n.Local = layout.Network{Slot: c.Slot}.Node(n.Index)
	if n.LocalPort, err = freePort(n.Local, 10250); err != nil {
		return n, err
	}
	if n.Address == "" {
		n.Address = machineAddress(n.Local)
	}
	n.Port = n.LocalPort
	if n.Address != n.Local {
		n.Port, err = freePort(n.Address, 0)
	}
	return n, err
}

// machineAddress is this machine's own address, from which it would reach the world. A node advertises it, with a port
// of its own, because kube-apiserver proxies to no loopback address. No packet is sent to find it.
func machineAddress(otherwise string) string {
	conn, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		return otherwise
	}
	defer conn.Close()
	if ip := conn.LocalAddr().(*net.UDPAddr).IP; ip.IsGlobalUnicast() {
		return ip.String()
	}
	return otherwise
}

// newBootID never looks like a number, which some YAML readers would take it for.
func newBootID() string { return "boot-" + strings.ToLower(rand.Text()) }

// prepareNode makes the node's disk, its certificates and its kubeconfig.
func (a *app) prepareNode(c layout.Cluster, n layout.Node, ca []byte) error {
	if err := c.SaveNode(n); err != nil {
		return err
	}
	file := c.NodeDir(n.Name, "kubelet-ca.crt")
	if n.OS == "windows" {
		file = c.NodeDir(n.Name, "c", "k", "kubelet-ca.crt")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		return err
	}
	serving, err := pki.LoadAuthority(c.PKI("kubelet-ca"))
	if err != nil {
		return err
	}
	err = serving.Issue(c.NodeDir(n.Name, "kubelet"), pki.Request{
		CommonName: "system:node:" + n.Name, Organizations: []string{"system:nodes"},
		Hosts: []string{n.Local, n.Address, "127.0.0.1", n.Name},
	})
	if err != nil {
		return err
	}
	err = controlplane.WriteKubeconfig(c, c.NodeDir(n.Name, "kubeconfig"),
		pki.Request{CommonName: "system:node:" + n.Name, Organizations: []string{"system:nodes"}})
	if err != nil || n.Program != "wine" {
		return err
	}
	return a.winePrefix(c, n)
}

// winePrefix gives the node a Wine prefix of its own whose C: is the node's disk.
func (a *app) winePrefix(c layout.Cluster, n layout.Node) error {
	store, err := a.store()
	if err != nil {
		return err
	}
	prefix := c.NodeDir(n.Name, "wine")
	if err := os.MkdirAll(prefix, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join("..", "c"), filepath.Join(prefix, "drive_c")); err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(store.Source, "..", "wine", "prefix.sh"), prefix)
	cmd.Env = append(os.Environ(), process.Mark+"="+c.Dir) // should this program be killed, `down` finds it
	out, err := cmd.CombinedOutput()
	if err != nil {
		return hint(fmt.Errorf("set up Wine: %w: %s", err, strings.TrimSpace(string(out))), "use --program native to do without Wine")
	}
	return nil
}

// awaitNodes waits until the nodes are Ready, or the process of one has ended.
func (a *app) awaitNodes(ctx context.Context, c layout.Cluster, table process.Table, names []string) error {
	var nodes []layout.Node
	for _, name := range names {
		err := a.await(ctx, table, "node-"+name, func(ctx context.Context) error {
			ready, err := a.kubectl(ctx, c, nil, "get", "node", name, "--ignore-not-found", "--output",
				`jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
			if err == nil && ready != "True" {
				err = errors.New("not Ready yet")
			}
			return err
		})
		if err != nil {
			return err
		}
		n, err := c.LoadNode(name)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	var text strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&text, "node %s (%s, programs run as %s) is Ready; its files are in %s\n", n.Name, n.OS, n.Program, c.NodeDir(n.Name))
	}
	return a.print(nodes, text.String())
}
