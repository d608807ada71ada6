package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T, table Table, name, script string) Record {
	t.Helper()
	t.Cleanup(func() { table.Sweep() })
	if err := table.Start(Spec{Name: name, Args: []string{"/bin/sh", "-c", script}, Env: []string{"GREETING=hello"}}); err != nil {
		t.Fatalf("start: %v", err)
	}
	r, err := table.Find(name)
	if err != nil {
		t.Fatalf("find: %v", err)
	}
	return r
}

func TestAProcessIsPausedResumedStoppedAndForgotten(t *testing.T) {
	table := Table{Dir: t.TempDir()}
	r := start(t, table, "sleeper", "exec sleep 600")
	if r.State() != "running" {
		t.Fatalf("state %s after start", r.State())
	}
	if err := table.Start(r.Spec); err == nil {
		t.Error("it was started a second time")
	}
	if err := r.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if !waitGone(5*time.Second, func() bool { return r.State() == "paused" }) {
		t.Errorf("state %s after SIGSTOP", r.State())
	}
	r.Stop(5 * time.Second) // must end a paused process, too
	if r.Alive() {
		t.Error("it runs after Stop")
	}
	if err := table.Forget("sleeper"); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Find("sleeper"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("found after Forget: %v", err)
	}
}

func TestStopKillsWhatIgnoresSIGTERM(t *testing.T) {
	table := Table{Dir: t.TempDir()}
	r := start(t, table, "stubborn", `trap "" TERM; echo deaf; while :; do sleep 1; done`)
	if !waitGone(5*time.Second, func() bool { return logged(t, table, "stubborn", "deaf") }) {
		t.Fatal("it did not begin")
	}
	r.Stop(50 * time.Millisecond)
	if r.Alive() {
		t.Error("it runs after Stop")
	}
}

func TestAnotherProcessWithTheSameIDIsNotMistakenForOurs(t *testing.T) {
	r := Record{PID: os.Getpid(), Started: 1}
	if r.Alive() {
		t.Error("a process that was started at another time is taken for the recorded one")
	}
	if err := r.Signal(syscall.SIGKILL); err == nil {
		t.Error("it was sent a signal")
	}
}

func TestSweepEndsWhatHasNoRecordAndNothingElse(t *testing.T) {
	table, other := Table{Dir: t.TempDir()}, Table{Dir: t.TempDir()}
	start(t, table, "parent", "setsid sleep 600 & echo $!; exec sleep 600")
	bystander := start(t, other, "bystander", "exec sleep 600")
	if !waitGone(5*time.Second, func() bool { return len(marked(Mark+"="+table.Dir)) == 2 }) {
		t.Fatalf("marked processes: %v, want parent and child", marked(Mark+"="+table.Dir))
	}
	if n := table.Sweep(); n < 2 {
		t.Errorf("swept %d processes, want at least parent and child", n)
	}
	if left := marked(Mark + "=" + table.Dir); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
	if !bystander.Alive() {
		t.Error("a process of another cluster was ended")
	}
}

func TestOutputGoesToTheLogAndTheEnvironmentIsPassedOn(t *testing.T) {
	table := Table{Dir: t.TempDir()}
	start(t, table, "talker", `echo "$GREETING"; echo oops >&2; exec sleep 600`)
	if !waitGone(5*time.Second, func() bool { return logged(t, table, "talker", "oops") }) || !logged(t, table, "talker", "hello") {
		t.Error("the log lacks output")
	}
}

func TestAProgramThatIsNotThereIsAnError(t *testing.T) {
	table := Table{Dir: t.TempDir()}
	if err := table.Start(Spec{Name: "nothing", Args: []string{filepath.Join(t.TempDir(), "nothing")}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want one that says that there is no such file", err)
	}
}

func logged(t *testing.T, table Table, name, text string) bool {
	t.Helper()
	data, err := os.ReadFile(table.Log(name))
	return err == nil && strings.Contains(string(data), text)
}
