package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"kubelet-ca-courier/hack/cluster/layout"
)

// ports are what the control plane listens on, each with the port that it gets where that is free.
var ports = map[string]int{
	"etcd": 2379, "etcd-peer": 2380, "kube-apiserver": 6443, "kube-controller-manager": 10257, "kube-scheduler": 10259,
}

// allocate gives a new cluster networks that no other cluster of the user has, and ports that are free there. A slot is
// taken while its file names a directory whose cluster says that it has that slot.
func allocate(cache, dir string) (layout.Cluster, error) {
	c := layout.Cluster{Dir: dir, Ports: map[string]int{}}
	slots := filepath.Join(cache, "slots")
	if err := os.MkdirAll(slots, 0o755); err != nil {
		return c, err
	}
	lock, err := os.Open(slots)
	if err != nil {
		return c, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return c, fmt.Errorf("lock %s: %w", slots, err)
	}
	for c.Slot = 0; taken(slots, c.Slot); c.Slot++ {
		if c.Slot == layout.Slots-1 {
			return c, hint(fmt.Errorf("%d clusters run already", layout.Slots), "end one with 'down'; %s names their directories", slots)
		}
	}
	address := layout.Network{Slot: c.Slot}.ControlPlane()
	for name, preferred := range ports {
		if c.Ports[name], err = freePort(address, preferred); err != nil {
			return c, err
		}
	}
	c.APIServer = fmt.Sprintf("https://%s:%d", address, c.Ports["kube-apiserver"])
	if err := os.WriteFile(filepath.Join(slots, strconv.Itoa(c.Slot)), []byte(dir), 0o644); err != nil {
		return c, err
	}
	return c, errors.Join(os.MkdirAll(dir, 0o755), c.Save())
}

func taken(slots string, slot int) bool {
	dir, err := os.ReadFile(filepath.Join(slots, strconv.Itoa(slot)))
	if err != nil {
		return false
	}
	other, err := layout.Load(string(dir))
	return err == nil && other.Slot == slot
}

// release gives the cluster's slot back.
func release(cache string, c layout.Cluster) error {
	path := filepath.Join(cache, "slots", strconv.Itoa(c.Slot))
	if dir, err := os.ReadFile(path); err != nil || string(dir) != c.Dir {
		return nil // not ours, or gone already
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// freePort returns the preferred port of the address if nothing listens there, and any free one otherwise.
func freePort(address string, preferred int) (int, error) {
	for _, port := range []int{preferred, 0} {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err == nil {
			return listener.Addr().(*net.TCPAddr).Port, listener.Close()
		}
		if port == 0 {
			return 0, hint(fmt.Errorf("no port of %s can be listened on: %w", address, err), "the whole range 127.0.0.0/8 must be loopback")
		}
	}
	return preferred, nil
}
