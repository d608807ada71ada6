package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// apiServerSays is a Status object as kube-apiserver sends it.
func apiServerSays(message string) []byte {
	raw, err := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Message: message})
	if err != nil {
		panic(err) // a constant type
	}
	return raw
}

func TestKubeletsAnswersAreToldFromTheAPIServersOwn(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		body   []byte
		err    error
		want   answer
		detail string
	}{
		"the kubelet is healthy":                  {200, []byte("ok"), nil, answerTrusted, ""},
		"the kubelet does not know who asks":      {401, []byte("Unauthorized"), nil, answerUnauthorized, "does not trust"},
		"the kubelet knows who asks and refuses":  {403, []byte("Forbidden (user=kube-apiserver)"), nil, answerTrusted, "forbids"},
		"the kubelet is not healthy":              {500, []byte("healthz check failed"), nil, answerTrusted, "not healthy"},
		"the API server cannot dial the node":     {503, apiServerSays("error trying to reach service: dial tcp 10.0.0.1:10250: i/o timeout"), nil, answerUnreachable, "dial tcp 10.0.0.1:10250: i/o timeout"},
		"the kubelet's own certificate is wrong":  {503, apiServerSays("error trying to reach service: tls: failed to verify certificate"), nil, answerUnreachable, "tls: failed to verify"},
		"the API server gives up":                 {504, apiServerSays("the server was unable to return a response in time"), nil, answerUnreachable, "in time"},
		"the API server does not know the caller": {401, apiServerSays("Unauthorized"), nil, answerFailed, "Unauthorized"},
		"the API server refuses the caller":       {403, apiServerSays(`nodes "win-1" is forbidden`), nil, answerFailed, "is forbidden"},
		"the node is gone":                        {404, apiServerSays(`nodes "win-1" not found`), nil, answerFailed, "not found"},
		"nothing came back in time":               {0, nil, fmt.Errorf("get: %w", context.DeadlineExceeded), answerUnreachable, "no answer in time"},
		"the API server is away":                  {0, nil, errors.New("connection refused"), answerFailed, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			got, detail := classify(test.status, test.body, test.err)
			if got != test.want || !strings.Contains(detail, test.detail) {
				t.Errorf("got %s %q, want %s with %q", got, detail, test.want, test.detail)
			}
		})
	}
}

func TestRefusalsAreBlamedOnWhoeverIsToBlame(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	certificate := func(from, until time.Duration) *x509.Certificate {
		return &x509.Certificate{NotBefore: now.Add(from), NotAfter: now.Add(until), Issuer: pkix.Name{CommonName: "signer"}}
	}
	for name, test := range map[string]struct {
		witness     answer
		certificate *x509.Certificate
		want        answer
		detail      string
	}{
		"Linux nodes accept the API server":     {answerTrusted, nil, answerUnauthorized, "does not trust"},
		"Linux nodes refuse it as well":         {answerUnauthorized, nil, answerClientCertificate, "Linux nodes refuse"},
		"no Linux node answers":                 {answerUnreachable, nil, answerUnauthorized, "does not trust"},
		"the certificate has expired":           {answerUnauthorized, certificate(-2, -1), answerClientCertificate, "expired at 2026-11-30T23:59:59Z"},
		"the certificate is not valid yet":      {answerUnauthorized, certificate(1, 2), answerClientCertificate, "valid only from"},
		"the certificate is good":               {answerTrusted, certificate(-1, 1), answerUnauthorized, "CN=signer"},
		"it is good, and Linux nodes refuse it": {answerUnauthorized, certificate(-1, 1), answerUnauthorized, "CN=signer"},
	} {
		t.Run(name, func(t *testing.T) {
			probes := []probe{
				{Node: "win-1", Answer: answerUnauthorized, Detail: "does not trust"},
				{Node: "win-2", Answer: answerUnreachable, Detail: "i/o timeout"},
			}
			explainUnauthorized(probes, []probe{{Answer: test.witness}}, test.certificate, now)
			if got := probes[0]; got.Answer != test.want || !strings.Contains(got.Detail, test.detail) {
				t.Errorf("got %s %q, want %s with %q", got.Answer, got.Detail, test.want, test.detail)
			}
			if probes[1].Answer != answerUnreachable {
				t.Errorf("an unreachable node became %s", probes[1].Answer)
			}
		})
	}
}

// fakeAPI is an API server whose nodes answer as the map says; those that it does not name are healthy.
func fakeAPI(t *testing.T, nodes int, allowed bool, answers map[string]int) string {
	t.Helper()
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	for i := range nodes {
		list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("win-%04d", nodes-i)}})
	}
	send := func(w http.ResponseWriter, object any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(object); err != nil {
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", func(w http.ResponseWriter, _ *http.Request) {
		send(w, authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"},
			Status:   authorizationv1.SubjectAccessReviewStatus{Allowed: allowed},
		})
	})
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("labelSelector") != defaultSelector {
			send(w, corev1.NodeList{TypeMeta: list.TypeMeta})
			return
		}
		send(w, list)
	})
	mux.HandleFunc("GET /api/v1/nodes/{name}/proxy/healthz", func(w http.ResponseWriter, r *http.Request) {
		if status, ok := answers[r.PathValue("name")]; ok {
			http.Error(w, http.StatusText(status), status)
			return
		}
		fmt.Fprint(w, "ok")
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return kubeconfigFor(t, server.URL)
}

// kubeconfigFor writes a kubeconfig for a server.
func kubeconfigFor(t *testing.T, url string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: url}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// execute runs the plugin and returns its exit code and output.
func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &err}, args)
	return code, out.String(), err.String()
}

func TestVerifyOfManyNodesShowsTheFailuresAndNoMore(t *testing.T) {
	kubeconfig := fakeAPI(t, 5000, true, map[string]int{"win-0007": 401, "win-4999": 401})
	code, stdout, _ := execute(t, "verify", "--kubeconfig", kubeconfig)
	if code != exitNo {
		t.Errorf("exit code %d, want %d", code, exitNo)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if want := "2 of 5000 nodes do not accept the API server: 2 Unauthorized"; lines[0] != want {
		t.Errorf("the first line is %q, want %q", lines[0], want)
	}
	if len(lines) != 7 || !strings.HasPrefix(lines[3], "win-0007 ") || !strings.HasPrefix(lines[4], "win-4999 ") {
		t.Errorf("got %d lines, want the summary, the two failures and what is left out:\n%s", len(lines), stdout)
	}
}

func TestVerifyAsksAgainWhenTheAPIServerLostTheConnection(t *testing.T) {
	answers := [][]byte{apiServerSays("error trying to reach service: read: use of closed network connection"), []byte("ok")}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if len(answers) == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if _, err := w.Write(answers[0]); err != nil {
			t.Error(err)
		}
		answers = answers[1:]
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := prober{http: server.Client(), paths: client.CoreV1().RESTClient(), timeout: time.Minute, parallel: 1}
	if got := p.one(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "win-1"}}); got.Answer != answerTrusted {
		t.Errorf("got %s %q, want %s", got.Answer, got.Detail, answerTrusted)
	}
}

func TestVerifyInJSONHasEveryNode(t *testing.T) {
	code, stdout, _ := execute(t, "verify", "-o", "json", "--kubeconfig", fakeAPI(t, 3, true, map[string]int{"win-0002": 401}))
	var got struct {
		APIVersion, Kind string
		Nodes, Trusted   int
		Results          []probe
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	if code != exitNo || got.APIVersion != reportVersion || got.Kind != "Verification" || got.Nodes != 3 || got.Trusted != 2 ||
		len(got.Results) != 3 || got.Results[1].Answer != answerUnauthorized {
		t.Errorf("exit code %d, %+v", code, got)
	}
}

func TestVerifyThatCannotAskSaysWhy(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"without the right to nodes/proxy": {[]string{"--kubeconfig", fakeAPI(t, 1, false, nil)}, "you may not get nodes/proxy\nhint: "},
		"with nobody at the address":       {[]string{"--kubeconfig", kubeconfigFor(t, "http://127.0.0.1:1")}, "connection refused"},
		"with no kubeconfig":               {[]string{"--kubeconfig", "/none"}, "/none"},
		"with a flag that does not exist":  {[]string{"--nope"}, "unknown flag: --nope\nhint: see kubectl courier verify --help"},
		"with a format that does not":      {[]string{"-o", "xml"}, `unknown output format "xml"`},
		"with nobody to ask at a time":     {[]string{"--parallel", "0"}, "at least 1"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := execute(t, append([]string{"verify"}, test.args...)...)
			if code != exitFault || stdout != "" || !strings.HasPrefix(stderr, "error: ") || !strings.Contains(stderr, test.want) {
				t.Errorf("exit code %d, output %q, error %q; want %d, none, and %q", code, stdout, stderr, exitFault, test.want)
			}
		})
	}
}
