package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// answer is how a kubelet met the API server.
type answer string

// The answers. Only trusted is a good one.
const (
	// answerTrusted says that the kubelet knew the API server. A kubelet authenticates before it authorizes, so its
	// refusal of the request itself (403) proves trust as well.
	answerTrusted answer = "Trusted"
	// answerUnauthorized says that the kubelet did not know the API server: the CA is missing from its file.
	answerUnauthorized answer = "Unauthorized"
	// answerClientCertificate says that the API server's own client certificate is to blame.
	answerClientCertificate answer = "ClientCertificateRefused"
	// answerUnreachable says that the API server got no answer, so nothing is known about trust.
	answerUnreachable answer = "Unreachable"
	// answerFailed says that the API server would not pass the question on.
	answerFailed answer = "Failed"
)

// probe is what came back from one node.
type probe struct {
	Node   string `json:"node"`
	Ready  bool   `json:"ready"`
	Answer answer `json:"answer"`
	Detail string `json:"detail,omitempty"`
}

// maxBody is how much of an answer is read: a Status object is smaller.
const maxBody = 64 << 10

// prober asks kubelets through the API server's node proxy, with the caller's rights.
type prober struct {
	http *http.Client
	// paths builds the URLs.
	paths   rest.Interface
	timeout time.Duration
	// parallel is how many nodes are asked at a time: an unreachable one takes the whole timeout.
	parallel int
}

// all asks every node and returns the answers in the nodes' order.
func (p prober) all(ctx context.Context, nodes []corev1.Node, done func()) []probe {
	probes := make([]probe, len(nodes))
	var group errgroup.Group
	group.SetLimit(p.parallel)
	for i := range nodes {
		group.Go(func() error {
			probes[i] = p.one(ctx, &nodes[i])
			done()
			return nil
		})
	}
	_ = group.Wait() // the functions above return no error
	return probes
}

// one asks a node for its health, and once more where the API server lost the connection: it drops those to kubelets when its
// client certificate changes (k8s.io/client-go/transport/cert_rotation.go), which is when people ask. It does so with plain HTTP: client-go drops status and body of an answer whose content
// type it cannot decode, and a kubelet answers in plain text.
func (p prober) one(ctx context.Context, node *corev1.Node) probe {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	url := p.paths.Get().Resource("nodes").Name(node.Name).SubResource("proxy").Suffix("healthz").URL().String()
	kind, detail := classify(p.get(ctx, url))
	if kind == answerUnreachable && ctx.Err() == nil {
		kind, detail = classify(p.get(ctx, url))
	}
	return probe{Node: node.Name, Ready: nodeReady(node), Answer: kind, Detail: detail}
}

// get returns the status and the beginning of the body.
func (p prober) get(ctx context.Context, url string) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	response, err := p.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	return response.StatusCode, body, errors.Join(err, response.Body.Close())
}

// classify tells the kubelet's answers from the API server's own. The API server answers with a Status object, the kubelet
// with plain text; "error trying to reach service" is k8s.io/apimachinery/pkg/util/proxy/transport.go.
func classify(status int, body []byte, err error) (answer, string) {
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return answerUnreachable, "no answer in time"
		}
		return answerFailed, err.Error()
	}
	message, own := apiServerMessage(body)
	switch {
	case !own && status == http.StatusUnauthorized:
		return answerUnauthorized, "the kubelet does not trust the API server's client certificate"
	case !own && status == http.StatusForbidden:
		return answerTrusted, "the kubelet knows the API server and forbids this request"
	case !own && status >= http.StatusInternalServerError:
		return answerTrusted, "the kubelet answers that it is not healthy"
	case !own:
		return answerTrusted, ""
	case strings.Contains(message, "error trying to reach service"), status == http.StatusGatewayTimeout:
		_, cause, found := strings.Cut(message, "error trying to reach service: ")
		if !found {
			cause = message
		}
		return answerUnreachable, cause
	default:
		return answerFailed, message
	}
}

// apiServerMessage returns the message of a Status object, and whether the body is one.
func apiServerMessage(body []byte) (string, bool) {
	var status metav1.Status
	if json.Unmarshal(body, &status) != nil || status.Kind != "Status" {
		return "", false
	}
	return status.Message, true
}

// nodeReady says whether the node's kubelet reports Ready.
func nodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
