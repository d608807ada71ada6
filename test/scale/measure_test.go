package scale

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubelet-ca-courier/test/scale/lab"
)

// writes counts the dispatcher's writes so far, by verb and resource, from the audit log; those of its lease apart.
func (b *bench) writes() map[string]int {
	b.t.Helper()
	text, err := os.ReadFile(b.l.Audit)
	b.must(err)
	counts := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource string }
		}
		if json.Unmarshal([]byte(line), &entry) != nil || entry.User.Username != lab.CourierUser || entry.ObjectRef.Resource == "leases" {
			continue
		}
		counts[entry.Verb+" "+entry.ObjectRef.Resource]++
	}
	return counts
}

// difference returns what was added.
func difference(after, before map[string]int) map[string]int {
	added := maps.Clone(after)
	for key := range added {
		if added[key] -= before[key]; added[key] == 0 {
			delete(added, key)
		}
	}
	return added
}

// memoryOf reads a field of a process's status in MiB (proc(5)).
func memoryOf(t testing.TB, pid int, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(field + `:\s*(\d+) kB`).FindSubmatch(text)
	if match == nil {
		t.Fatalf("%s is not in the status", field)
	}
	kib, err := strconv.Atoi(string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// processorTime reads what a process has used so far, in user and system mode (proc(5): fields 14 and 15, in hundredths of a
// second on Linux).
func processorTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum
}
