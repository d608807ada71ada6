package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"kubelet-ca-courier/hack/cluster/binaries"
	"kubelet-ca-courier/hack/cluster/controlplane"
	"kubelet-ca-courier/hack/cluster/layout"
	"kubelet-ca-courier/hack/cluster/pki"
	"kubelet-ca-courier/hack/cluster/process"
)

// firstSigner signs kube-apiserver's client certificate at the beginning.
const firstSigner = "first"

// bootstrap is applied to every cluster: what kubelets and simulated nodes are allowed.
//
//go:embed bootstrap.yaml
var bootstrap []byte

// up starts the cluster, or what of it does not run.
func (a *app) up(ctx context.Context) (layout.Cluster, error) {
	store, err := a.store()
	if err != nil {
		return layout.Cluster{}, err
	}
	programs, err := store.Ensure(ctx, binaries.ControlPlane...)
	if err != nil {
		return layout.Cluster{}, err
	}
	c, err := a.loadOrAllocate(store.Cache)
	if err != nil {
		return c, err
	}
	if err := os.MkdirAll(c.Path("bin"), 0o755); err != nil {
		return c, err
	}
	for name, path := range programs {
		if err := link(path, c.Bin(name)); err != nil {
			return c, err
		}
	}
	if err := store.BuildOwn(ctx, c.Path("bin"), binaries.Own{Name: "agent", Module: store.Source, Package: "./agent"}); err != nil {
		return c, err
	}
	table := process.Table{Dir: c.Dir}
	if err := a.startControlPlane(ctx, c, table); err != nil {
		return c, err
	}
	return c, a.apply(ctx, c, bootstrap)
}

// startControlPlane starts one process after another, for none of them waits long for the one before.
func (a *app) startControlPlane(ctx context.Context, c layout.Cluster, table process.Table) error {
	for _, spec := range append(controlplane.Specs(c), agent(c, "services")) {
		if r, err := table.Find(spec.Name); err == nil && r.Alive() {
			continue
		}
		if err := table.Start(spec); err != nil {
			return err
		}
		var err error
		switch spec.Name {
		case "etcd":
			address := net.JoinHostPort(layout.Network{Slot: c.Slot}.ControlPlane(), strconv.Itoa(c.Ports["etcd"]))
			err = a.await(ctx, table, "etcd", func(ctx context.Context) error { return dial(ctx, address) })
		case "kube-apiserver":
			err = a.awaitHealthy(ctx, c, table, "kube-apiserver")
		}
		if err != nil {
			return err
		}
	}
	return a.awaitHealthy(ctx, c, table, "kube-controller-manager", "kube-scheduler")
}

// link makes a symbolic link, or has the one that is there lead to the path.
func link(path, name string) error {
	if there, err := os.Readlink(name); err == nil && there == path {
		return nil
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(path, name)
}

// loadOrAllocate returns the cluster of the directory, with certificates and signers; a new one where there is none. A
// cluster without a signer is one whose first `up` was cut short: its certificates are made again.
func (a *app) loadOrAllocate(cache string) (layout.Cluster, error) {
	c, err := layout.Load(a.dir)
	switch {
	case err == nil && c.Signer != "":
		return c, nil
	case err == nil:
		err = errors.Join(os.RemoveAll(c.Path("pki")), os.RemoveAll(c.Path("signers")))
	case errors.Is(err, fs.ErrNotExist):
		if entries, err := os.ReadDir(a.dir); err == nil && len(entries) > 0 {
			return c, hint(fmt.Errorf("%s is not empty and holds no cluster", a.dir), "name another directory with --dir")
		}
		c, err = allocate(cache, a.dir)
	}
	if err != nil {
		return c, err
	}
	if err := controlplane.WritePKI(c); err != nil {
		return c, err
	}
	if _, err := newSigner(c, firstSigner, signerValidity); err != nil {
		return c, err
	}
	if err := controlplane.Resign(c, firstSigner); err != nil {
		return c, err
	}
	c.Signer = firstSigner
	return c, c.Save()
}

// agent is a process that runs this module's agent.
func agent(c layout.Cluster, name string, args ...string) process.Spec {
	return process.Spec{Name: name, Args: append([]string{c.Bin("agent"), strings.SplitN(name, "-", 2)[0], c.Dir}, args...)}
}

// awaitHealthy waits until components of the control plane say that they are well.
func (a *app) awaitHealthy(ctx context.Context, c layout.Cluster, table process.Table, names ...string) error {
	ca, err := pki.LoadAuthority(c.PKI("ca"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate())
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	for _, name := range names {
		path := "healthz"
		if name == "kube-apiserver" {
			path = "readyz"
		}
		url := fmt.Sprintf("https://%s:%d/%s", layout.Network{Slot: c.Slot}.ControlPlane(), c.Ports[name], path)
		if err := a.await(ctx, table, name, func(ctx context.Context) error { return get(ctx, client, url) }); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the check of a process passes; that the process ended is the one reason to give up early.
func (a *app) await(ctx context.Context, table process.Table, name string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	task := a.progress.Start("wait for " + name)
	defer task.Done()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		task.Update(err.Error())
		if r, findErr := table.Find(name); findErr != nil || !r.Alive() {
			return hint(fmt.Errorf("%s ended: %s", name, lastLine(table.Log(name))), "its log is %s", table.Log(name))
		}
		select {
		case <-ctx.Done():
			return hint(fmt.Errorf("%s is not ready: %w", name, err), "its log is %s", table.Log(name))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, response.Status)
	}
	return nil
}

func dial(ctx context.Context, address string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func lastLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[len(lines)-1]
}

// apply applies manifests with the cluster's own kubectl.
func (a *app) apply(ctx context.Context, c layout.Cluster, manifests []byte) error {
	_, err := a.kubectl(ctx, c, manifests, "apply", "--filename=-")
	return err
}

// kubectl runs the cluster's kubectl as the administrator.
func (a *app) kubectl(ctx context.Context, c layout.Cluster, stdin []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Bin("kubectl"), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// down ends every process of the cluster and removes every file.
func (a *app) down() error {
	c, err := layout.Load(a.dir)
	if errors.Is(err, fs.ErrNotExist) {
		if swept := (process.Table{Dir: a.dir}).Sweep(); swept > 0 {
			a.progress.Say("ended %d processes that a removed cluster left", swept)
		}
		return nil
	}
	if err != nil {
		return err
	}
	table := process.Table{Dir: a.dir}
	records, err := table.List()
	if err != nil {
		return err
	}
	var stopping sync.WaitGroup
	for _, r := range records {
		stopping.Go(func() { r.Stop(3 * time.Second) })
	}
	stopping.Wait()
	table.Sweep()
	if err := removeNamespaces(c); err != nil {
		return err
	}
	cache, err := binaries.DefaultCache()
	if err != nil {
		return err
	}
	// cluster.json goes last, so that a `down` which was cut short can be run again.
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "cluster.json" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(a.dir, e.Name())))
		}
	}
	return errors.Join(err, release(cache, c), os.RemoveAll(a.dir))
}
