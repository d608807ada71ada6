package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/test/need"
)

// cluster is what the tests share.
type cluster struct {
	*lab.Lab
	client    kubernetes.Interface
	up        sync.Once
	err       error
	published []string
	rotations int
}

var shared = cluster{published: []string{"first"}}

// windowsNodes are there from the beginning.
var windowsNodes = []string{"win-1", "win-2"}

// patience bounds every wait for a condition; nothing takes that long unless it is broken.
const patience = 10 * time.Minute

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.Lab != nil {
		if _, err := shared.Cluster(context.Background(), "down"); err != nil {
			fmt.Fprintln(os.Stderr, "faults: could not end the cluster:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// start returns the cluster with courier installed and the first bundle delivered.
func start(t *testing.T) *cluster {
	t.Helper()
	need.ControlPlane(t)
	shared.up.Do(func() { shared.err = shared.bringUp(context.Background()) })
	if shared.err != nil {
		t.Fatalf("bring up the cluster: %v", shared.err)
	}
	return &shared
}

func (c *cluster) bringUp(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "courier-faults-")
	if err != nil {
		return err
	}
	if c.Lab, err = lab.Open(ctx, dir, os.Stderr); err != nil {
		return err
	}
	if _, err := c.Cluster(ctx, "up"); err != nil {
		return err
	}
	if err := errors.Join(c.Furnish(ctx, windowsNodes...), c.SeedOpenShift(ctx, "first"), c.Install(ctx)); err != nil {
		return err
	}
	c.client, _, err = c.Client()
	return err
}

// do runs a command of the cluster.
func (c *cluster) do(t *testing.T, args ...string) {
	t.Helper()
	if _, err := c.Cluster(context.WithoutCancel(t.Context()), args...); err != nil {
		t.Fatal(err)
	}
}

// kubectl runs kubectl and returns what it printed.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(context.WithoutCancel(t.Context()), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually tries until the attempt succeeds; its last error is the failure.
func eventually(t *testing.T, what string, attempt func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	for {
		err := attempt(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v\nlogs: %s/logs", what, err, shared.Dir)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// rotate adds a signer to the guarded ConfigMap and returns what nodes must end with. With the arguments of --as, somebody else
// writes it.
func (c *cluster) rotate(t *testing.T, as ...string) []byte {
	t.Helper()
	c.rotations++
	name := fmt.Sprintf("signer-%d", c.rotations)
	if err := c.Signer(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	c.published = append(c.published, name)
	text, err := c.Cluster(t.Context(), append([]string{"signer", "bundle"}, c.published...)...)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rotation is written", func(ctx context.Context) error {
		_, err := c.PatchGuarded(ctx, text, as...)
		return err
	})
	guarded, findings := bundle.Parse([]byte(text))
	managed, err := c.client.CoreV1().ConfigMaps(lab.ManagedNamespace).Get(t.Context(), lab.ManagedName, metav1.GetOptions{})
	if err != nil || len(findings) > 0 {
		t.Fatal(err, findings)
	}
	extra, _ := bundle.Parse([]byte(managed.Data[lab.GuardedKey]))
	return bundle.Merge(guarded, extra).Canonical()
}

// file is a node's client-CA file.
func (c *cluster) file(node string) string { return c.Disk(node, "k", "kubelet-ca.crt") }

// settled waits until every node holds the content, with one succeeded Job each and no other.
func (c *cluster) settled(t *testing.T, content []byte) {
	t.Helper()
	eventually(t, "every node holds the bundle", func(ctx context.Context) error {
		for _, node := range windowsNodes {
			data, err := os.ReadFile(c.file(node))
			if err != nil {
				return err
			}
			if !bytes.Equal(data, content) {
				return fmt.Errorf("%s holds another bundle", node)
			}
		}
		list, err := c.client.BatchV1().Jobs(lab.JobsNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != len(windowsNodes) {
			return fmt.Errorf("%d Jobs", len(list.Items))
		}
		return each(list.Items, func(job batchv1.Job) error {
			if r := dispatcher.ReadRecord(&job); r.Phase != dispatcher.Succeeded || r.Hash != bundle.Hash(content) {
				return fmt.Errorf("the Job of %s is %s with bundle %.8s", r.NodeName, r.Phase, r.Hash)
			}
			return nil
		})
	})
}

func each(jobs []batchv1.Job, check func(batchv1.Job) error) error {
	for _, job := range jobs {
		if err := check(job); err != nil {
			return err
		}
	}
	return nil
}

// neverBroken watches the nodes' files until the returned function is called: at any moment each is a well-formed bundle.
func (c *cluster) neverBroken(t *testing.T) (end func()) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan int)
	go func() {
		looks := 0
		for {
			for _, node := range windowsNodes {
				data, err := os.ReadFile(c.file(node))
				if err != nil {
					t.Errorf("%s had no file: %v", node, err)
					continue
				}
				if _, findings := bundle.Parse(data); len(findings) > 0 {
					t.Errorf("%s held a broken file: %v", node, findings)
				}
				looks++
			}
			select {
			case <-stop:
				ended <- looks
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(stop)
		if looks := <-ended; looks == 0 {
			t.Error("nothing was looked at")
		}
	}
}

// warnings returns courier's warning events with the reason.
func (c *cluster) warnings(ctx context.Context, reason string) (map[types.UID]bool, error) {
	list, err := c.client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := map[types.UID]bool{}
	for _, e := range list.Items {
		if e.Type == corev1.EventTypeWarning && e.Reason == reason && strings.Contains(e.ReportingController, "courier") {
			found[e.UID] = true
		}
	}
	return found, nil
}

// warnedOf notes which warnings there are; the returned function waits for another one.
func (c *cluster) warnedOf(t *testing.T, reason string) (wait func()) {
	t.Helper()
	before, err := c.warnings(t.Context(), reason)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		eventually(t, "a warning "+reason+" tells an administrator", func(ctx context.Context) error {
			now, err := c.warnings(ctx, reason)
			if err != nil {
				return err
			}
			maps.DeleteFunc(now, func(uid types.UID, _ bool) bool { return before[uid] })
			if len(now) == 0 {
				return errors.New("there is none")
			}
			return nil
		})
	}
}

// underway fails the test if every node holds the content already: then the fault came too late to disturb anything.
func (c *cluster) underway(t *testing.T, content []byte) {
	t.Helper()
	for _, node := range windowsNodes {
		if data, err := os.ReadFile(c.file(node)); err != nil || !bytes.Equal(data, content) {
			return
		}
	}
	t.Error("the rotation was over before the fault")
}
