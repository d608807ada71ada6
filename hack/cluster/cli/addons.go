package cli

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubelet-ca-courier/hack/cluster/binaries"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/process"
)

// certManagerModule holds cert-manager's controllers and its CustomResourceDefinitions.
const certManagerModule = "github.com/cert-manager/cert-manager"

func (a *app) certManager() *cobra.Command {
	cmd := &cobra.Command{Use: "cert-manager", Short: "run cert-manager's issuing controllers and CA injector", Args: exactly()}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, table, err := a.load()
		if err != nil {
			return err
		}
		store, err := a.store()
		if err != nil {
			return err
		}
		own := binaries.Own{Name: "cert-manager", Module: store.Source, Package: "./certmanager"}
		if err := store.BuildOwn(cmd.Context(), c.Path("bin"), own); err != nil {
			return err
		}
		crds, err := moduleDir(cmd.Context(), store.Source, certManagerModule)
		if err != nil {
			return err
		}
		if _, err := a.kubectl(cmd.Context(), c, nil, "apply", "--server-side", "--filename", filepath.Join(crds, "deploy", "crds")); err != nil {
			return err
		}
		if err := a.awaitKinds(cmd.Context(), c, "certificates.cert-manager.io", "issuers.cert-manager.io"); err != nil {
			return err
		}
		if r, err := table.Find(own.Name); err == nil && r.Alive() {
			return nil
		}
		return table.Start(process.Spec{Name: own.Name, Args: []string{c.Bin(own.Name), c.Dir}})
	}
	return cmd
}

// awaitKinds waits until kube-apiserver serves the kinds. kubectl's own wait gives up on one that has no conditions yet.
func (a *app) awaitKinds(ctx context.Context, c layout.Cluster, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := a.kubectl(ctx, c, nil, append([]string{"wait", "--for=condition=Established", "--timeout=60s", "crd"}, names...)...)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// moduleDir is where the source of a module lies.
func moduleDir(ctx context.Context, source, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = source
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}
