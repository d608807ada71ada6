package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelet-ca-courier/node"
)

func TestAWrongCommandLineIsOneClearLineAHintAndExitCode2(t *testing.T) {
	sum := strings.Repeat("0", 64)
	valid := []string{"--source", "a", "--sha256", sum, "--destination", "b"}
	for _, c := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"nothing", nil, "--source is missing"},
		{"no destination", []string{"--source", "a", "--sha256", sum}, "--destination is missing"},
		{"an unknown flag", append(valid, "--force"), "-force"},
		{"an argument", append(valid, "more"), `unexpected argument "more"`},
		{"a hash that is none", []string{"--source", "a", "--sha256", "abc", "--destination", "b"}, "64 hexadecimal digits"},
		{"two kinds of look", append(valid, "--check", "--dry-run"), "exclude each other"},
		{"a kubelet without a port", append(valid, "--confirm", "127.0.0.1"), "-confirm"},
		{"a negative duration", append(valid, "--patience", "-1s"), "negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(context.Background(), c.arguments, &stdout, &stderr); code != node.ExitUsage {
				t.Errorf("exit code %d", code)
			}
			lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			if len(lines) != 2 || !strings.HasPrefix(lines[0], "error: ") || !strings.Contains(lines[0], c.want) ||
				!strings.HasPrefix(lines[1], "hint: ") {
				t.Errorf("stderr %q, want an error that says %q, and a hint", stderr.String(), c.want)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout %q", stdout.String())
			}
		})
	}
}

func TestHelpNamesEveryFlagAndExitCode(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), []string{"--help"}, &stdout, &stderr); code != node.ExitOK || stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
	for _, want := range []string{
		"--source", "--sha256", "--destination", "--check", "--dry-run", "--create-parent", "--confirm", "--confirm-timeout",
		"--patience", "--termination-message", "0 right", "9 not confirmed", "21 would change",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("help lacks %q", want)
		}
	}
}

func TestTheResultGoesToStandardOutputAndTheTerminationMessage(t *testing.T) {
	directory := t.TempDir()
	source := filepath.Join(directory, "ca-bundle.crt")
	if err := os.WriteFile(source, []byte("no bundle"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("no bundle"))
	message := filepath.Join(directory, "message")
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), []string{
		"--source", source, "--sha256", strings.ToUpper(hex.EncodeToString(sum[:])),
		"--destination", filepath.Join(directory, "ca.crt"), "--termination-message", message,
	}, &stdout, &stderr)
	if code != node.ExitSourceMismatch {
		t.Errorf("exit code %d", code)
	}
	var result node.Result
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
		t.Fatal(err)
	}
	if result.Code != code || result.Error == "" || strings.Count(stdout.String(), "\n") != 1 {
		t.Errorf("stdout %q", stdout.String())
	}
	if !strings.HasPrefix(stderr.String(), "error: "+result.Error+"\n") {
		t.Errorf("stderr %q", stderr.String())
	}
	written, err := os.ReadFile(message)
	if err != nil {
		t.Fatal(err)
	}
	if string(written)+"\n" != stdout.String() {
		t.Errorf("termination message %q", written)
	}
}

func TestATerminationMessageThatCannotBeWrittenChangesNothing(t *testing.T) {
	directory := t.TempDir()
	var stdout, stderr bytes.Buffer
	code := run(context.Background(), []string{
		"--source", filepath.Join(directory, "missing"), "--sha256", strings.Repeat("0", 64), "--patience", "0s",
		"--destination", filepath.Join(directory, "ca.crt"), "--termination-message", filepath.Join(directory, "no", "message"),
	}, &stdout, &stderr)
	if code != node.ExitSourceMissing || !strings.Contains(stderr.String(), "warning: the termination message") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}

// faulty panics.
type faulty struct{}

func (faulty) Write([]byte) (int, error) { panic("no such thing") }

func TestAPanicIsExitCode1AndNoStackTrace(t *testing.T) {
	var stderr bytes.Buffer
	if code := run(context.Background(), []string{"--help"}, faulty{}, &stderr); code != node.ExitInternal {
		t.Errorf("exit code %d", code)
	}
	if want := "error: internal: no such thing\nhint: "; !strings.HasPrefix(stderr.String(), want) ||
		strings.Count(stderr.String(), "\n") != 2 {
		t.Errorf("stderr %q", stderr.String())
	}
}
