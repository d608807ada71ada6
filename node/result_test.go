package node_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubelet-ca-courier/node"
)

func TestTheLineIsTheResultAsJSON(t *testing.T) {
	for _, want := range []node.Result{
		{},
		{
			Outcome: node.Replaced, Code: node.ExitNotConfirmed, Meaning: "meaning", Destination: `C:\k\ca.crt`, SHA256: "ab",
			Certificates: 3, Noticed: true, Confirmation: node.NotYet, Detail: "detail",
			Removed: []node.Removal{{Subject: "CN=a,O=\"b\"", SHA256: "cd"}, {Subject: "CN=é", SHA256: "ef"}}, RemovedCount: 2,
			Warnings: []string{"one", "two\r\n\t\x00\x7f\u2028<&>", "鍵 🔑"}, Error: "error", Hint: "hint",
		},
	} {
		line := want.Line(0)
		var got node.Result
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		var ours, theirs map[string]any
		theirLine, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &ours); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(theirLine, &theirs); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(theirs, ours); diff != "" {
			t.Errorf("not the fields that encoding/json writes: %s", diff)
		}
		if strings.ContainsAny(string(line), "\r\n") {
			t.Errorf("more than one line: %q", line)
		}
	}
}

func TestALineThatMustBeShortLosesItsListsAndKeepsTheCounts(t *testing.T) {
	result := node.Result{Outcome: node.Replaced, RemovedCount: 1000}
	for range result.RemovedCount {
		result.Removed = append(result.Removed, node.Removal{Subject: "CN=a rather long name of a signer", SHA256: strings.Repeat("0", 64)})
	}
	line := result.Line(4096)
	if len(line) > 4096 {
		t.Errorf("%d bytes", len(line))
	}
	var got node.Result
	if err := json.Unmarshal(line, &got); err != nil {
		t.Fatal(err)
	}
	if got.RemovedCount != 1000 || len(got.Removed) == 0 || got.Outcome != node.Replaced {
		t.Errorf("got %s", line)
	}
}

func FuzzTheLineIsJSONWhateverTheTextsHold(f *testing.F) {
	f.Add("plain")
	f.Add("\x00\xff\u2029\"\\")
	f.Fuzz(func(t *testing.T, text string) {
		result := node.Result{Error: text, Warnings: []string{text}}
		var got node.Result
		if err := json.Unmarshal(result.Line(0), &got); err != nil {
			t.Fatal(err)
		}
		if want := strings.ToValidUTF8(text, "\ufffd"); len(got.Error) < len(want) {
			t.Errorf("got %q, want %q", got.Error, want)
		}
	})
}
