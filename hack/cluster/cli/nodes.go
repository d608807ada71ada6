package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubelet-ca-courier/hack/cluster/controlplane"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/pki"
	"kubelet-ca-courier/hack/cluster/process"
)

// nodes are the commands for simulated nodes.
func (a *app) nodes() []*cobra.Command {
	return []*cobra.Command{
		a.addNode(), a.removeNode(), a.ask(),
		a.nodeCommand("reboot-node", "restart a simulated node; its boot ID changes, its disk stays",
			func(c layout.Cluster, table process.Table, n layout.Node) error {
				r, err := table.Find("node-" + n.Name)
				if err != nil {
					return err
				}
				r.Kill()
				n.BootID = newBootID()
				if err := c.SaveNode(n); err != nil {
					return err
				}
				return table.Start(r.Spec)
			}),
		a.nodeCommand("notready-node", "make a node report that it is not Ready (to silence it, pause node-NAME)",
			func(c layout.Cluster, _ process.Table, n layout.Node) error {
				n.NotReady = true
				return c.SaveNode(n)
			}),
		a.nodeCommand("ready-node", "make a node report that it is Ready",
			func(c layout.Cluster, _ process.Table, n layout.Node) error {
				n.NotReady = false
				return c.SaveNode(n)
			}),
	}
}

func (a *app) nodeCommand(name, short string, act func(layout.Cluster, process.Table, layout.Node) error) *cobra.Command {
	return &cobra.Command{Use: name + " NODE", Short: short, Args: exactly("NODE"), RunE: func(_ *cobra.Command, args []string) error {
		c, table, n, err := a.loadNode(args[0])
		if err != nil {
			return err
		}
		return act(c, table, n)
	}}
}

func (a *app) loadNode(name string) (layout.Cluster, process.Table, layout.Node, error) {
	c, table, err := a.load()
	if err != nil {
		return c, table, layout.Node{}, err
	}
	n, err := c.LoadNode(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = hint(fmt.Errorf("there is no simulated node called %q", name), "'status' lists them, 'add-node' adds one")
	}
	return c, table, n, err
}

func (a *app) addNode() *cobra.Command {
	cmd := &cobra.Command{Use: "add-node NAME...", Short: "add simulated nodes, or start those that do not run, and wait until they are Ready"}
	var template layout.Node
	var caFile string
	flags := cmd.Flags()
	flags.StringVar(&template.OS, "os", "windows", "windows, or linux for where the manager's pods run")
	flags.StringVar(&template.MountStyle, "mount-style", "bind", "how a Windows node mounts volumes: bind (containerd 1.7) or sandbox (1.6)")
	flags.StringVar(&template.KubeletVersion, "kubelet-version", "v1.37.2", "the version that the node reports")
	flags.StringVar(&template.Address, "address", "", "the address that the node advertises (default: this machine's)")
	flags.StringVar(&template.Program, "program", "auto", "how Windows programs run: wine, native, or auto for wine where it is installed")
	flags.StringVar(&caFile, "ca-file", "", "what the node's client-CA file holds at first (default: the signer in use)")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if err := checkNodeNames(names); err != nil {
			return err
		}
		c, table, err := a.load()
		if err != nil {
			return err
		}
		ca, err := initialBundle(c, caFile)
		if err != nil {
			return err
		}
		if err := completeTemplate(&template); err != nil {
			return err
		}
		if err := a.buildPrograms(cmd.Context(), c, template); err != nil {
			return err
		}
		for _, name := range names {
			if err := a.ensureNode(c, table, name, template, ca); err != nil {
				return err
			}
		}
		return a.awaitNodes(cmd.Context(), c, table, names)
	}
	return cmd
}

// ensureNode starts a node. One that is there already stays as it is, and is started if it does not run.
func (a *app) ensureNode(c layout.Cluster, table process.Table, name string, template layout.Node, ca []byte) error {
	n, err := c.LoadNode(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if n, err = newNode(c, name, template); err != nil {
			return err
		}
		if err := a.prepareNode(c, n, ca); err != nil {
			return errors.Join(err, os.RemoveAll(c.NodeDir(name)))
		}
	case err != nil:
		return err
	case n.OS != template.OS:
		return hint(fmt.Errorf("there is a node called %q already, which runs %s", name, n.OS), "take another name, or remove it with 'remove-node'")
	}
	if r, err := table.Find("node-" + name); err == nil && r.Alive() {
		return nil
	}
	return table.Start(agent(c, "node-"+name, name))
}

// initialBundle is what a new node's client-CA file holds.
func initialBundle(c layout.Cluster, file string) ([]byte, error) {
	if file == "" {
		return signerBundle(c, []string{c.Signer})
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, hint(err, "--ca-file names a PEM file")
	}
	return data, nil
}

func (a *app) removeNode() *cobra.Command {
	cmd := &cobra.Command{Use: "remove-node NODE", Short: "remove a simulated node, its Node object included", Args: exactly("NODE")}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, table, n, err := a.loadNode(args[0])
		if err != nil {
			return err
		}
		if r, err := table.Find("node-" + n.Name); err == nil {
			r.Kill()
		}
		if _, err := a.kubectl(cmd.Context(), c, nil, "delete", "node", n.Name, "--ignore-not-found"); err != nil {
			return err
		}
		return errors.Join(table.Forget("node-"+n.Name), os.RemoveAll(c.NodeDir(n.Name)))
	}
	return cmd
}

// answer is what a kubelet's server said.
type answer struct {
	Node   string `json:"node"`
	Signer string `json:"signer"`
	Status int    `json:"status"`
	Body   string `json:"body"`
}

// ask shows whether a node would let the API server in if its client certificate were signed by a given signer.
func (a *app) ask() *cobra.Command {
	cmd := &cobra.Command{Use: "ask NODE", Args: exactly("NODE"),
		Short: "ask a node's kubelet server for something, with a client certificate of a signer"}
	signer := cmd.Flags().String("signer", "", "the signer of the client certificate (default: the one in use)")
	path := cmd.Flags().String("path", "/healthz", "what to ask for; /whoami tells the user")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		c, _, n, err := a.loadNode(args[0])
		if err != nil {
			return err
		}
		if *signer == "" {
			*signer = c.Signer
		}
		client, err := kubeletClient(c, *signer)
		if err != nil {
			return err
		}
		defer client.CloseIdleConnections()
		response, err := client.Get("https://" + net.JoinHostPort(n.Address, strconv.Itoa(n.Port)) + *path)
		if err != nil {
			return hint(err, "'status' tells whether node-%s runs", n.Name)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		text := strings.TrimSpace(string(body))
		return a.print(answer{n.Name, *signer, response.StatusCode, text}, fmt.Sprintf("%s: %s\n", response.Status, text))
	}
	return cmd
}

// kubeletClient shows a client certificate as kube-apiserver does: whatever CAs the server says it would take.
func kubeletClient(c layout.Cluster, signer string) (*http.Client, error) {
	ca, err := controlplane.LoadSigner(c, signer)
	if err != nil {
		return nil, hint(err, "'signer list' lists them")
	}
	path := c.Path("signers", "clients", signer)
	if err := ca.Issue(path, pki.Request{CommonName: controlplane.KubeletClientUser}); err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(path+".crt", path+".key")
	if err != nil {
		return nil, err
	}
	serving, err := pki.LoadAuthority(c.PKI("kubelet-ca"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(serving.Certificate())
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:              pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	}}}, nil
}
