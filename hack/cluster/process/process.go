// Package process starts, finds and ends the processes of a local cluster. Nothing supervises them: each has a record
// with its process id and the time it was started, so that whoever comes later (another command, a test, `down` after a
// crash) can tell whether it still runs, and never mistakes another process that got the same id for it.
package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kubelet-ca-courier/hack/cluster/layout"
)

// Mark is the environment variable that every process of a cluster and its children carry, with the cluster's
// directory as its value. `down` ends by it what has no record: a pod's process whose node was killed, a wineserver.
const Mark = "COURIER_LOCAL_CLUSTER"

// Spec says how a process is started.
type Spec struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"`
}

// Record is a process that was started.
type Record struct {
	Spec
	PID     int    `json:"pid"`
	Started uint64 `json:"started"`
}

// Table is the processes of the cluster in one directory.
type Table struct{ Dir string }

func (t Table) record(name string) string { return filepath.Join(t.Dir, "run", name+".json") }

// Log is the path of the process's log.
func (t Table) Log(name string) string { return filepath.Join(t.Dir, "logs", name+".log") }

// foreign reports whether a variable of the environment would lead a process away from its own cluster: a proxy, which only
// loopback addresses are exempt from, or a setting of another etcd.
func foreign(variable string) bool {
	name, _, _ := strings.Cut(strings.ToUpper(variable), "=")
	return strings.HasSuffix(name, "_PROXY") || strings.HasPrefix(name, "ETCD_")
}

// Start starts the process in a session of its own, its output appended to its log, and records it.
func (t Table) Start(s Spec) error {
	if r, err := t.Find(s.Name); err == nil && r.Alive() {
		return fmt.Errorf("%s runs already, process %d", s.Name, r.PID)
	}
	for _, dir := range []string{"run", "logs"} {
		if err := os.MkdirAll(filepath.Join(t.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(t.Log(s.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.Args[0], s.Args[1:]...)
	cmd.Env = append(append(slices.DeleteFunc(os.Environ(), foreign), s.Env...), Mark+"="+t.Dir)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, t.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	go cmd.Wait() // reaps it, should it end before this program
	stat, err := readStat(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s ended at once; its log is %s", s.Name, t.Log(s.Name))
	}
	data, err := json.MarshalIndent(Record{Spec: s, PID: cmd.Process.Pid, Started: stat.started}, "", "  ")
	if err != nil {
		return err
	}
	return layout.WriteFile(t.record(s.Name), data, 0o644)
}

// Find reads a process's record. The error wraps fs.ErrNotExist where there is none of that name.
func (t Table) Find(name string) (Record, error) {
	var r Record
	data, err := os.ReadFile(t.record(name))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", t.record(name), err)
	}
	return r, nil
}

// List returns all records, by name.
func (t Table) List() ([]Record, error) {
	entries, err := os.ReadDir(filepath.Join(t.Dir, "run"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var records []Record
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		r, err := t.Find(name)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// Alive tells whether the recorded process still runs.
func (r Record) Alive() bool { return r.State() != "gone" }

// State is running, paused or gone.
func (r Record) State() string {
	stat, err := readStat(r.PID)
	switch {
	case err != nil, stat.started != r.Started, stat.state == "Z", stat.state == "X":
		return "gone"
	case stat.state == "T":
		return "paused"
	}
	return "running"
}

// Signal sends a signal to the process, if it is still the one that was started.
func (r Record) Signal(signal syscall.Signal) error {
	if !r.Alive() {
		return fmt.Errorf("%s does not run", r.Name)
	}
	return syscall.Kill(r.PID, signal)
}

// Stop ends the process: SIGTERM, and SIGKILL when it has not ended within the grace period.
func (r Record) Stop(grace time.Duration) {
	if !r.Alive() {
		return
	}
	_ = syscall.Kill(r.PID, syscall.SIGTERM) // it may end on its own at any moment
	_ = syscall.Kill(r.PID, syscall.SIGCONT) // a paused process would not hear the first
	if !waitGone(grace, func() bool { return !r.Alive() }) {
		r.Kill()
	}
}

// Kill ends the process at once and waits until it is gone.
func (r Record) Kill() {
	if r.Alive() {
		_ = syscall.Kill(r.PID, syscall.SIGKILL) // as above
		waitGone(10*time.Second, func() bool { return !r.Alive() })
	}
}

// Forget removes the record of a process.
func (t Table) Forget(name string) error {
	err := os.Remove(t.record(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Sweep kills every process that carries the cluster's mark and returns how many there were.
func (t Table) Sweep() int { return Sweep(Mark + "=" + t.Dir) }

// Sweep kills every process that was started with the variable, given as NAME=VALUE, and returns how many there were.
func Sweep(variable string) int {
	swept := 0
	for range 20 { // a process may have started another in between
		pids := marked(variable)
		if len(pids) == 0 {
			return swept
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
		swept += len(pids)
		waitGone(5*time.Second, func() bool { return len(marked(variable)) == 0 })
	}
	return swept
}

// marked lists the live processes that were started with the variable. Environments of other users' processes cannot be
// read, and none of those is ours.
func marked(variable string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	want := []byte(variable)
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue
		}
		if slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return bytes.Equal(v, want) }) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func waitGone(limit time.Duration, gone func() bool) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if gone() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return gone()
}

type stat struct {
	state   string
	started uint64
}

// readStat reads state (field 3) and start time (field 22) of /proc/PID/stat; see proc(5). The second field is the
// program's name in brackets and may itself hold brackets and spaces.
func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	started, err := strconv.ParseUint(fields[19], 10, 64)
	return stat{state: fields[0], started: started}, err
}
