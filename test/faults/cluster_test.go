package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// cluster is what the tests share.
type cluster struct {
	*lab.Lab
	client kubernetes.Interface
}

var (
	// windowsNodes are there from the beginning.
	windowsNodes = []string{"win-1", "win-2"}
	suite        = labtest.Suite{Plan: lab.Plan{Windows: windowsNodes, Signers: []string{"first"}, Install: true}}
	// published are the signers whose CAs the guarded ConfigMap holds, the newest last.
	published = []string{"first"}
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// start returns the cluster with courier installed and the first bundle delivered.
func start(t *testing.T) *cluster {
	t.Helper()
	l := suite.Lab(t)
	client, _, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{Lab: l, client: client}
}

// do runs a command of the cluster.
func (c *cluster) do(t *testing.T, args ...string) {
	t.Helper()
	labtest.Must[string](t)(c.Cluster(context.WithoutCancel(t.Context()), args...))
}

// kubectl runs kubectl and returns what it printed.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return labtest.Must[string](t)(c.Kubectl(context.WithoutCancel(t.Context()), args...))
}

// rotate adds a signer to the guarded ConfigMap and returns what nodes must end with. With the arguments of --as, somebody else
// writes it.
func (c *cluster) rotate(t *testing.T, as ...string) []byte {
	t.Helper()
	published = append(published, fmt.Sprintf("signer-%d", len(published)))
	text := labtest.Must[string](t)(c.Bundle(t.Context(), published...))
	labtest.Eventually(t, "the rotation is written", func(ctx context.Context) error {
		_, err := c.PatchGuarded(ctx, text, as...)
		return err
	})
	return labtest.Must[[]byte](t)(c.Union(t.Context(), text))
}

// rotateHalf rotates while a node stands still, so that the rotation is not over before the returned function is called.
func (c *cluster) rotateHalf(t *testing.T) (content []byte, goOn func()) {
	t.Helper()
	goOn = func() { c.do(t, "resume", "node-win-2") }
	c.do(t, "pause", "node-win-2")
	t.Cleanup(goOn)
	return c.rotate(t), goOn
}

// settled waits until every node holds the content, with one succeeded Job each and no other.
func (c *cluster) settled(t *testing.T, content []byte) {
	t.Helper()
	labtest.Eventually(t, "every node holds the bundle", func(ctx context.Context) error {
		_, err := c.Delivered(ctx, content, windowsNodes...)
		return err
	})
}

// neverBroken watches the nodes' files until the returned function is called: at any moment each is a well-formed bundle.
func (c *cluster) neverBroken(t *testing.T) (end func()) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan int)
	go func() {
		looks := 0
		for {
			for _, node := range windowsNodes {
				data, err := os.ReadFile(c.File(node))
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
		labtest.Eventually(t, "a warning "+reason+" tells an administrator", func(ctx context.Context) error {
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
		if data, err := os.ReadFile(c.File(node)); err != nil || !bytes.Equal(data, content) {
			return
		}
	}
	t.Error("the rotation was over before the fault")
}
