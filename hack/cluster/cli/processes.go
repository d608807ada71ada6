package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"kubelet-ca-courier/hack/cluster/controlplane"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/pki"
	"kubelet-ca-courier/hack/cluster/process"
)

// processes are the commands that break and mend single processes, and the signers.
func (a *app) processes() []*cobra.Command {
	return []*cobra.Command{
		a.processCommand("kill", "kill a process at once", func(_ process.Table, r process.Record) error {
			r.Kill()
			return nil
		}),
		a.processCommand("stop", "end a process", func(_ process.Table, r process.Record) error {
			r.Stop(10 * time.Second)
			return nil
		}),
		a.restart(),
		a.processCommand("pause", "stop a process in its tracks, as a frozen machine would", func(_ process.Table, r process.Record) error {
			return r.Signal(syscall.SIGSTOP)
		}),
		a.processCommand("resume", "let a paused process go on", func(_ process.Table, r process.Record) error {
			return r.Signal(syscall.SIGCONT)
		}),
		a.signer(), a.resign(),
	}
}

func (a *app) processCommand(name, short string, act func(process.Table, process.Record) error) *cobra.Command {
	return &cobra.Command{Use: name + " NAME", Short: short, Args: exactly("NAME"), RunE: func(_ *cobra.Command, args []string) error {
		_, table, r, err := a.loadProcess(args[0])
		if err != nil {
			return err
		}
		return act(table, r)
	}}
}

// restartGrace is short: kube-apiserver would wait for its watches to end, and etcd survives anything.
const restartGrace = 2 * time.Second

// restart waits until a part of the control plane is well again, so that what follows can rely on it.
func (a *app) restart() *cobra.Command {
	cmd := a.processCommand("restart", "end a process, if it runs, and start it again", nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, table, r, err := a.loadProcess(args[0])
		if err != nil {
			return err
		}
		return a.restartProcess(cmd.Context(), c, table, r)
	}
	return cmd
}

// clients are the parts of the control plane that do not survive every absence of kube-apiserver: while they start, they
// give up and leave it to others to start them again.
var clients = []string{"kube-controller-manager", "kube-scheduler"}

func (a *app) restartProcess(ctx context.Context, c layout.Cluster, table process.Table, r process.Record) error {
	var running []process.Record
	for _, name := range clients {
		if client, err := table.Find(name); err == nil && client.Alive() && r.Name == "kube-apiserver" {
			running = append(running, client)
		}
	}
	r.Stop(restartGrace)
	if err := table.Start(r.Spec); err != nil {
		return err
	}
	if r.Name != "kube-apiserver" && !slices.Contains(clients, r.Name) {
		return nil
	}
	if err := a.awaitHealthy(ctx, c, table, r.Name); err != nil {
		return err
	}
	for _, client := range running {
		if client.Alive() {
			continue
		}
		if err := table.Start(client.Spec); err != nil {
			return err
		}
		if err := a.awaitHealthy(ctx, c, table, client.Name); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) loadProcess(name string) (layout.Cluster, process.Table, process.Record, error) {
	c, table, err := a.load()
	if err != nil {
		return c, table, process.Record{}, err
	}
	r, err := table.Find(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = hint(fmt.Errorf("there is no process called %q", name), "'status' lists them")
	}
	return c, table, r, err
}

// signerValidity is that of OpenShift's signers.
const signerValidity = 365 * 24 * time.Hour

var signerName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// newSigner makes a signer of kube-apiserver's client certificate, named as OpenShift names its own.
func newSigner(c layout.Cluster, name string, lifetime time.Duration) (*pki.Authority, error) {
	if !signerName.MatchString(name) {
		return nil, usageError{fmt.Errorf("a signer's name holds lower-case letters, digits and dashes: %q", name)}
	}
	if _, err := controlplane.LoadSigner(c, name); err == nil {
		return nil, hint(fmt.Errorf("there is a signer called %q already", name), "take another name")
	}
	return pki.NewAuthority(controlplane.SignerPath(c, name), "openshift-kube-apiserver-operator_kube-apiserver-to-kubelet-signer@"+name, lifetime)
}

func (a *app) signer() *cobra.Command {
	root := &cobra.Command{Use: "signer", Short: "make and show signers of the API server's client certificate for kubelets"}
	create := &cobra.Command{Use: "new NAME", Short: "make a signer", Args: exactly("NAME")}
	lifetime := create.Flags().Duration("valid-for", signerValidity, "how long its certificate is valid")
	create.RunE = func(_ *cobra.Command, args []string) error {
		c, _, err := a.load()
		if err != nil {
			return err
		}
		if _, err := newSigner(c, args[0], *lifetime); err != nil {
			return err
		}
		path := controlplane.SignerPath(c, args[0]) + ".crt"
		return a.print(path, path+"\n")
	}
	list := &cobra.Command{Use: "list", Short: "list the signers; a star marks the one in use", Args: exactly()}
	list.RunE = func(*cobra.Command, []string) error { return a.listSigners() }
	bundle := &cobra.Command{Use: "bundle NAME...", Short: "print the certificates of signers, as a CA bundle"}
	bundle.RunE = func(_ *cobra.Command, names []string) error {
		c, _, err := a.load()
		if err != nil {
			return err
		}
		data, err := signerBundle(c, names)
		if err != nil {
			return err
		}
		return a.print(string(data), string(data))
	}
	root.AddCommand(create, list, bundle)
	return root
}

// signerBundle concatenates the certificates of signers.
func signerBundle(c layout.Cluster, names []string) ([]byte, error) {
	if len(names) == 0 {
		return nil, usageError{errors.New("missing argument NAME")}
	}
	var data []byte
	for _, name := range names {
		ca, err := controlplane.LoadSigner(c, name)
		if err != nil {
			return nil, hint(err, "'signer list' lists them")
		}
		data = append(data, ca.PEM()...)
	}
	return data, nil
}

func (a *app) listSigners() error {
	c, _, err := a.load()
	if err != nil {
		return err
	}
	names, err := controlplane.Signers(c)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range names {
		mark := " "
		if name == c.Signer {
			mark = "*"
		}
		fmt.Fprintf(&text, "%s %s\n", mark, name)
	}
	return a.print(names, text.String())
}

// resign is the moment that everything is about: from then on the API server shows kubelets a certificate which only
// the new signer vouches for.
func (a *app) resign() *cobra.Command {
	cmd := &cobra.Command{Use: "resign-client SIGNER", Args: exactly("SIGNER"),
		Short: "sign the API server's client certificate for kubelets anew",
		Long: "Sign the API server's client certificate for kubelets anew. kube-apiserver looks at the file every five\n" +
			"minutes; with --restart it is restarted and uses the new certificate at once."}
	restart := cmd.Flags().Bool("restart", false, "restart kube-apiserver, so that it uses the new certificate at once")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, table, err := a.load()
		if err != nil {
			return err
		}
		if err := controlplane.Resign(c, args[0]); err != nil {
			return hint(err, "'signer list' lists them, 'signer new' makes one")
		}
		c.Signer = args[0]
		if err := c.Save(); err != nil || !*restart {
			return err
		}
		r, err := table.Find("kube-apiserver")
		if err != nil {
			return err
		}
		return a.restartProcess(cmd.Context(), c, table, r)
	}
	return cmd
}
