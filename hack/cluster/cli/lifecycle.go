package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"kubelet-ca-courier/hack/cluster/binaries"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/process"
)

// lifecycle are the commands that begin and end a cluster, and tell about it.
func (a *app) lifecycle() []*cobra.Command {
	up := &cobra.Command{Use: "up", Short: "start a cluster, or what of it does not run", Args: exactly()}
	up.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.up(cmd.Context())
		if err != nil {
			return err
		}
		return a.print(c, fmt.Sprintf("the cluster is ready\n  export KUBECONFIG=%s\n  logs: %s\n", c.Kubeconfig(), c.Path("logs")))
	}
	down := &cobra.Command{Use: "down", Short: "end the cluster; no process and no file is left", Args: exactly()}
	down.RunE = func(*cobra.Command, []string) error { return a.down() }
	status := &cobra.Command{Use: "status", Short: "show processes and nodes", Args: exactly()}
	status.RunE = func(*cobra.Command, []string) error { return a.status() }
	env := &cobra.Command{Use: "env", Short: "print what to eval in a shell", Args: exactly()}
	env.RunE = func(*cobra.Command, []string) error {
		c, _, err := a.load()
		if err != nil {
			return err
		}
		return a.print(map[string]string{"KUBECONFIG": c.Kubeconfig(), "bin": c.Path("bin")},
			fmt.Sprintf("export KUBECONFIG=%s\nexport PATH=%s:\"$PATH\"\n", c.Kubeconfig(), c.Path("bin")))
	}
	kubeconfig := &cobra.Command{Use: "kubeconfig", Short: "print the path of the administrator's kubeconfig", Args: exactly()}
	kubeconfig.RunE = func(*cobra.Command, []string) error {
		c, _, err := a.load()
		if err != nil {
			return err
		}
		return a.print(c.Kubeconfig(), c.Kubeconfig()+"\n")
	}
	return []*cobra.Command{up, down, status, env, kubeconfig, a.assets(), a.buildCommand()}
}

// assets builds the control plane without starting it.
func (a *app) assets() *cobra.Command {
	cmd := &cobra.Command{Use: "assets", Short: "print a directory for KUBEBUILDER_ASSETS, built if need be", Args: exactly()}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		store, err := a.store()
		if err != nil {
			return err
		}
		paths, err := store.Ensure(cmd.Context(), binaries.ControlPlane...)
		if err != nil {
			return err
		}
		dir := filepath.Dir(paths["kube-apiserver"])
		for name, path := range paths {
			if filepath.Dir(path) != dir {
				return hint(fmt.Errorf("%s is not in %s", name, dir), "unset KUBEBUILDER_ASSETS, or make it complete")
			}
		}
		return a.print(dir, dir+"\n")
	}
	return cmd
}

func (a *app) buildCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "build [NAME...]", Short: "build programs into the cache: the control plane's, or those named",
		ValidArgs: binaries.All}
	all := cmd.Flags().Bool("all", false, "build kubelet and kwok as well")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		store, err := a.store()
		if err != nil {
			return err
		}
		switch {
		case *all:
			names = binaries.All
		case len(names) == 0:
			names = binaries.ControlPlane
		}
		paths, err := store.Ensure(cmd.Context(), names...)
		if err != nil {
			return err
		}
		var text strings.Builder
		for _, name := range names {
			fmt.Fprintln(&text, paths[name])
		}
		return a.print(paths, text.String())
	}
	return cmd
}

// report is what status tells.
type report struct {
	layout.Cluster
	Kubeconfig string          `json:"kubeconfig"`
	Logs       string          `json:"logs"`
	Processes  []processReport `json:"processes"`
	Nodes      []layout.Node   `json:"nodes"`
}

type processReport struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	State string `json:"state"`
	Log   string `json:"log"`
}

func (a *app) status() error {
	c, table, err := a.load()
	if err != nil {
		return err
	}
	r, err := describe(c, table)
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "directory  %s\nkubeconfig %s\nlogs       %s\nserver     %s\nsigner     %s\n\n", c.Dir, r.Kubeconfig, r.Logs, c.APIServer, c.Signer)
	fmt.Fprintf(&text, "%-32s %-8s %s\n", "PROCESS", "PID", "STATE")
	for _, p := range r.Processes {
		fmt.Fprintf(&text, "%-32s %-8d %s\n", p.Name, p.PID, p.State)
	}
	if len(r.Nodes) > 0 {
		fmt.Fprintf(&text, "\n%-24s %-8s %-8s %-8s %-24s %s\n", "NODE", "OS", "MOUNTS", "PROGRAM", "KUBELET", "DISK")
	}
	for _, n := range r.Nodes {
		fmt.Fprintf(&text, "%-24s %-8s %-8s %-8s %-24s %s\n", n.Name, n.OS, n.MountStyle, n.Program, fmt.Sprintf("%s:%d", n.Address, n.Port), c.NodeDir(n.Name))
	}
	return a.print(r, text.String())
}

func describe(c layout.Cluster, table process.Table) (report, error) {
	r := report{Cluster: c, Kubeconfig: c.Kubeconfig(), Logs: c.Path("logs")}
	records, err := table.List()
	if err != nil {
		return r, err
	}
	for _, p := range records {
		r.Processes = append(r.Processes, processReport{p.Name, p.PID, p.State(), table.Log(p.Name)})
	}
	r.Nodes, err = c.Nodes()
	return r, err
}
