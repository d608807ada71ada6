package network

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
	"k8s.io/client-go/tools/clientcmd"

	"kubelet-ca-courier/test/scale/lab"
)

// wire is courier's way to the API server.
type wire struct {
	proxy *toxiproxy.Proxy
	// kubeconfig leads along it.
	kubeconfig string
}

// lay makes a wire to the lab's API server.
func lay(t *testing.T, l *lab.Lab) *wire {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	upstream, err := url.Parse(l.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{proxy: toxiproxy.NewProxy(server, "api-server", "127.0.0.1:0", upstream.Host)}
	w.mend(t)
	t.Cleanup(w.proxy.Stop)
	config, err := clientcmd.LoadFromFile(l.CourierKubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + w.proxy.Listen
	}
	w.kubeconfig = filepath.Join(l.Dir, "wire.kubeconfig")
	if err := clientcmd.WriteToFile(*config, w.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return w
}

// cut closes every connection; nobody listens any more.
func (w *wire) cut() { w.proxy.Stop() }

// mend ends a cut.
func (w *wire) mend(t *testing.T) {
	t.Helper()
	if err := w.proxy.Start(); err != nil {
		t.Fatal(err)
	}
}

// poison puts a toxic on both directions, and returns what takes it off again.
func (w *wire) poison(t *testing.T, kind string, attributes any) (added []*toxics.ToxicWrapper, remove func()) {
	t.Helper()
	for _, direction := range []string{"upstream", "downstream"} {
		text, err := json.Marshal(map[string]any{
			"name": kind + "-" + direction, "type": kind, "stream": direction, "attributes": attributes,
		})
		if err != nil {
			t.Fatal(err)
		}
		toxic, err := w.proxy.Toxics.AddToxicJson(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		added = append(added, toxic)
	}
	return added, func() {
		for _, toxic := range added {
			if err := w.proxy.Toxics.RemoveToxic(context.WithoutCancel(t.Context()), toxic.Name); err != nil {
				t.Error(err)
			}
		}
	}
}

// slow delays what goes along, by so much in each direction.
func (w *wire) slow(t *testing.T, each time.Duration) (end func()) {
	t.Helper()
	_, end = w.poison(t, "latency", toxics.LatencyToxic{Latency: each.Milliseconds()})
	return end
}

// reset resets connections while they are opened and used.
func (w *wire) reset(t *testing.T) (end func()) {
	t.Helper()
	_, end = w.poison(t, "reset_peer", toxics.ResetToxic{})
	return end
}

// silence makes the connections that are open now go silent without closing them. Later ones are not affected.
func (w *wire) silence(t *testing.T) (end func()) {
	t.Helper()
	added, end := w.poison(t, silentKind, struct{}{})
	for _, toxic := range added {
		toxic.Toxic.(*silent).others.Store(true)
	}
	return end
}

// silentKind is the name under which the toxic is known.
const silentKind = "silent"

func init() { toxics.Register(silentKind, new(silent)) }

// silent is what a firewall or a load balancer does that has forgotten its connections: those that are open when it is added
// go silent, as with a timeout that never comes.
type silent struct {
	// others says that connections are later ones from now on.
	others atomic.Bool
}

// NewState is called once for each connection: whether it is one of those that go silent.
func (s *silent) NewState() any { return !s.others.Load() }

// Pipe lets nothing through, or everything.
func (s *silent) Pipe(stub *toxics.ToxicStub) {
	if mute, ok := stub.State.(bool); ok && mute {
		new(toxics.TimeoutToxic).Pipe(stub)
		return
	}
	new(toxics.NoopToxic).Pipe(stub)
}

// Cleanup closes what was silent: bytes are missing from it.
func (s *silent) Cleanup(stub *toxics.ToxicStub) {
	if mute, ok := stub.State.(bool); ok && mute {
		stub.Close()
	}
}

var _ fmt.Stringer = (*wire)(nil)

// String is the address that courier connects to.
func (w *wire) String() string { return w.proxy.Listen }
