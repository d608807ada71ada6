// Package e2e proves the whole on real parts: etcd, kube-apiserver and its controllers, cert-manager, the kubelet, the
// shipped manifests, and the programs that ship. Only the Windows nodes are simulated; hack/cluster/README.md says how far.
//
// The tests share one cluster, since bringing one up takes longer than any of them. Each begins by making sure that what
// the one before left behind has settled, so that each can be run alone as well.
package e2e

import (
	"os"
	"slices"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// cluster is what the tests share.
type cluster struct {
	*lab.Lab
	client kubernetes.Interface
	config *rest.Config
}

// firstSigner signs the API server's client certificate at the beginning.
const firstSigner = "first"

var (
	// windowsNodes are there from the beginning.
	windowsNodes = []string{"win-1", "win-2", "win-3"}
	suite        = labtest.Suite{Plan: lab.Plan{Windows: windowsNodes, Signers: []string{firstSigner}, Install: true}}
	// published are the signers whose CAs the guarded ConfigMap holds.
	published = []string{firstSigner}
)

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// start returns the shared cluster with courier installed and the first bundle delivered.
func start(t *testing.T) *cluster {
	t.Helper()
	l := suite.Lab(t)
	client, config, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{Lab: l, client: client, config: config}
}

// publish adds the signers to the guarded ConfigMap and returns the content that nodes must end with. Those published
// before stay, as the gate demands.
func (c *cluster) publish(t *testing.T, names ...string) []byte {
	t.Helper()
	for _, name := range names {
		if !slices.Contains(published, name) {
			published = append(published, name)
		}
	}
	return labtest.Must[[]byte](t)(c.Publish(t.Context(), published...))
}
