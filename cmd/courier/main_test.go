package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// kubeconfig writes a kubeconfig for a server.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
`, server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// nobody returns an address at which nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return "http://" + listener.Addr().String()
}

func TestBadInputEndsWithOneClearErrorAndAHint(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"major":"1","minor":"37","gitVersion":"v1.37.2"}`))
	}))
	t.Cleanup(server.Close)
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		want      string
	}{
		{"an unknown flag", []string{"--nope"}, 2, "unknown flag: --nope"},
		{"an argument too many", []string{"run"}, 2, `unexpected argument "run"`},
		{"a configuration without namespace", []string{"--config=x"}, 2, "not namespace/name"},
		{"no Jobs' namespace", []string{"--jobs-namespace="}, 2, "--jobs-namespace is empty"},
		{"a port that does not exist", []string{"--metrics-port=70000"}, 2, "port 70000 does not exist"},
		{"an unknown log format", []string{"--log-format=xml"}, 2, "neither text nor json"},
		{"no kubeconfig outside of a cluster", nil, 1, "find the API server"},
		{"a kubeconfig that is not there", []string{"--kubeconfig=/nonexistent"}, 1, "no such file"},
		{"a broken kubeconfig", []string{"--kubeconfig=" + broken}, 1, "read the kubeconfig"},
		{"an API server that does not answer", []string{"--kubeconfig=" + kubeconfig(t, nobody(t))}, 1, "does not answer"},
		{"no certificate for the webhook", []string{"--kubeconfig=" + kubeconfig(t, server.URL), "--cert-dir=/nonexistent"}, 1, "read the webhook's certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			t.Setenv("KUBECONFIG", "")
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), test.arguments, &stdout, &stderr)
			lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			if code != test.code || !strings.Contains(lines[0], test.want) {
				t.Errorf("exit code %d, want %d; %q lacks %q", code, test.code, lines[0], test.want)
			}
			if len(lines) != 2 || !strings.HasPrefix(lines[0], "error: ") || !strings.HasPrefix(lines[1], "hint: ") || stdout.Len() > 0 {
				t.Errorf("want one line of error and one hint, got:\n%s%s", stderr.String(), stdout.String())
			}
		})
	}
}

func TestTheVersionIsToldOnRequest(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--version"}, &stdout, &stderr); code != 0 || stdout.String() != "courier dev\n" || stderr.Len() > 0 {
		t.Errorf("exit code %d, output %q, errors %q", code, stdout.String(), stderr.String())
	}
}

func TestHelpListsTheFlags(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Errorf("exit code %d, errors %q", code, stderr.String())
	}
	for _, flag := range []string{"--bind-address", "--cert-dir", "--config", "--health-port", "--jobs-namespace", "--kubeconfig", "--metrics-port", "--version", "--webhook-port"} {
		if !strings.Contains(stdout.String(), flag) {
			t.Errorf("help lacks %s", flag)
		}
	}
}
