package lab

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// pretended stands for the cluster's program. It notes its commands; up takes until it is interrupted.
const pretended = `#!/bin/sh
trap 'echo interrupted >>"$2/commands"; exit 1' INT
echo "$3" >>"$2/commands"
[ "$3" = up ] || exit 0
while :; do sleep 0.05; done
`

// pretend returns a lab whose commands are pretended, and what reads them.
func pretend(t *testing.T) (l *Lab, commands func() []string) {
	t.Helper()
	root := t.TempDir()
	l = &Lab{Dir: root, Root: root, program: filepath.Join(root, "cluster"), progress: io.Discard}
	l.watchEnd()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "hack", "cluster"), 0o700), os.WriteFile(l.program, []byte(pretended), 0o700)); err != nil {
		t.Fatal(err)
	}
	return l, func() []string {
		text, _ := os.ReadFile(filepath.Join(root, "commands")) // there is none before the first command
		return strings.Fields(string(text))
	}
}

func TestEndingAClusterInterruptsWhatRunsAndRefusesWhatComesLater(t *testing.T) {
	l, commands := pretend(t)
	ended := make(chan error)
	go func() {
		_, err := l.Cluster(t.Context(), "up")
		ended <- err
	}()
	for len(commands()) == 0 {
		select {
		case err := <-ended:
			t.Fatal("up has ended by itself: ", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := l.End(false); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("up was not told that the cluster is being ended")
	}
	if _, err := l.Cluster(t.Context(), "add-node"); !errors.Is(err, errOver) {
		t.Errorf("a command after the end: %v", err)
	}
	if got, want := commands(), []string{"up", "interrupted", "down"}; !slices.Equal(got, want) {
		t.Errorf("the commands were %q, want %q", got, want)
	}
}
