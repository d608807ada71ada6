package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kubelet-ca-courier/bundle"
)

const casesDir = "../../bundle/testdata/cases"

// checkCase is what a case.json says; the README beside the cases gives the form.
type checkCase struct {
	Operation    string        `json:"operation"`
	At           string        `json:"at"`
	AllowDrop    []string      `json:"allowDrop"`
	Verdict      string        `json:"verdict"`
	Reasons      []bundle.Code `json:"reasons"`
	Warnings     []bundle.Code `json:"warnings"`
	Certificates int           `json:"certificates"`
}

// courier runs the command line in this process.
func courier(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = run(t.Context(), genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}, args)
	return code, out.String(), errOut.String()
}

func readJSON(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func TestCheckGivesEveryCaseItsVerdict(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(casesDir, "*", "case.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want checkCase
			readJSON(t, string(text), &want)
			args := []string{"check", "-o", "json", "--operation", want.Operation, "--at", want.At, "--old", filepath.Join(dir, "old.pem")}
			for _, fingerprint := range want.AllowDrop {
				args = append(args, "--allow-drop", fingerprint)
			}
			code, stdout, stderr := courier(t, append(args, filepath.Join(dir, "new.pem"))...)
			var got checkReport
			readJSON(t, stdout, &got)
			if wantCode := map[string]int{"allow": exitYes, "deny": exitNo}[want.Verdict]; code != wantCode || got.Verdict != want.Verdict {
				t.Fatalf("exit %d, verdict %s, want %d and %s; %s", code, got.Verdict, wantCode, want.Verdict, stderr)
			}
			if len(want.Reasons) > 0 && !slices.ContainsFunc(got.Reasons, func(f bundle.Finding) bool { return slices.Contains(want.Reasons, f.Code) }) {
				t.Errorf("reasons %v, want one of %v", got.Reasons, want.Reasons)
			}
			for _, code := range want.Warnings {
				if !slices.ContainsFunc(got.Warnings, func(f bundle.Finding) bool { return f.Code == code }) {
					t.Errorf("warnings %v, want %s among them", got.Warnings, code)
				}
			}
			if got.Certificates != want.Certificates || (got.Certificates > 0) != (len(got.SHA256) == 64) {
				t.Errorf("%d certificates with sha256 %q, want %d", got.Certificates, got.SHA256, want.Certificates)
			}
		})
	}
}

func TestCheckScripts(t *testing.T) {
	cases, err := filepath.Abs(casesDir)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/check",
		Setup: func(env *testscript.Env) error {
			env.Setenv("CASES", cases)
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "no-kubeconfig"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a command and compares its exit code: exits CODE COMMAND ARGUMENT...
func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		code = failed.ExitCode()
	case err != nil:
		ts.Fatalf("running %s: %v", args[1], err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

func TestCheckReadsAConfigMapFromTheCluster(t *testing.T) {
	good, err := os.ReadFile(filepath.Join(casesDir, "create", "new.pem"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		object := any(&corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{"ca-bundle.crt": string(good)},
		})
		if r.URL.Path != "/api/v1/namespaces/signers/configmaps/ca" {
			w.WriteHeader(http.StatusNotFound)
			object = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "not there"}
		}
		if err := json.NewEncoder(w).Encode(object); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	at := []string{"--server", server.URL, "--namespace", "signers", "--at", "2026-12-01T12:00:00Z"}

	code, stdout, stderr := courier(t, append(at, "check", "configmap/ca")...)
	if code != exitYes || !strings.Contains(stdout, "allowed: 1 certificates") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	broken := filepath.Join(casesDir, "bom", "new.pem")
	if code, stdout, _ = courier(t, append(at, "check", "--old", "cm/ca", broken)...); code != exitNo || !strings.Contains(stdout, "BrokenPEM") {
		t.Errorf("exit %d, %s", code, stdout)
	}
	if code, _, stderr = courier(t, append(at, "check", "configmap/other")...); code != exitFault || !strings.Contains(stderr, "hint: ") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}
