package dispatcher

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNodeKeyIsSafeAndTellsNodesApart(t *testing.T) {
	long := strings.Repeat("a", 63)
	names := []string{
		"win-1", "1", long, long + "." + long + "." + long + "." + strings.Repeat("b", 61), long + ".a", long + ".b",
		"a.b", "a-b", "win.example.com", strings.Repeat("a", 51) + ".-.b", "ip-10-0-0-1.eu-central-1.compute.internal",
	}
	seen := map[string]string{}
	for _, name := range names {
		key := NodeKey(name)
		if faults := validation.IsDNS1123Label(key); len(faults) > 0 {
			t.Errorf("key %q of %q: %v", key, name, faults)
		}
		if faults := validation.IsValidLabelValue(key); len(faults) > 0 {
			t.Errorf("key %q of %q as a label: %v", key, name, faults)
		}
		if other, taken := seen[key]; taken {
			t.Errorf("%q and %q have one key %q", name, other, key)
		}
		seen[key] = name
	}
	if got := NodeKey("win-1"); got != "win-1" {
		t.Errorf("the key of win-1 is %q, want the name itself", got)
	}
}
