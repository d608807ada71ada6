package bundle_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"kubelet-ca-courier/bundle"
)

// testCase is one folder of testdata/cases; the README there gives the form.
type testCase struct {
	Name         string        `json:"name"`
	About        string        `json:"about"`
	Operation    string        `json:"operation"`
	At           time.Time     `json:"at"`
	AllowDrop    []string      `json:"allowDrop"`
	Verdict      string        `json:"verdict"`
	Reasons      []bundle.Code `json:"reasons"`
	Warnings     []bundle.Code `json:"warnings"`
	Certificates int           `json:"certificates"`

	old, new []byte
}

// loadCases reads them all.
func loadCases(t testing.TB) []testCase {
	t.Helper()
	files, err := filepath.Glob("testdata/cases/*/case.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in testdata: %v", err)
	}
	var cases []testCase
	for _, file := range files {
		var c testCase
		if err := json.Unmarshal(readFile(t, file), &c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		c.new = readFile(t, filepath.Join(filepath.Dir(file), "new.pem"))
		if c.Operation != "CREATE" {
			c.old = readFile(t, filepath.Join(filepath.Dir(file), "old.pem"))
		}
		cases = append(cases, c)
	}
	return cases
}

// review judges the case.
func (c testCase) review(t testing.TB) bundle.Verdict {
	t.Helper()
	if c.Operation == "DELETE" {
		return bundle.ReviewDeletion()
	}
	allow := bundle.Allowances{}
	for _, s := range c.AllowDrop {
		f, err := bundle.ParseFingerprint(s)
		if err != nil {
			t.Fatal(err)
		}
		allow[f] = struct{}{}
	}
	return bundle.Review(c.old, c.new, c.At, allow)
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func codes(findings []bundle.Finding) []bundle.Code {
	all := make([]bundle.Code, 0, len(findings))
	for _, f := range findings {
		all = append(all, f.Code)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestEveryCaseGetsItsVerdict(t *testing.T) {
	for _, c := range loadCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			v := c.review(t)
			if v.Allowed != (c.Verdict == "allow") {
				t.Fatalf("%s: allowed %v, reasons %v", c.About, v.Allowed, v.Reasons)
			}
			if v.Allowed != (len(v.Reasons) == 0) {
				t.Errorf("allowed %v with reasons %v", v.Allowed, v.Reasons)
			}
			got := codes(v.Reasons)
			if len(c.Reasons) > 0 && !slices.ContainsFunc(c.Reasons, func(want bundle.Code) bool { return slices.Contains(got, want) }) {
				t.Errorf("%s: reasons %v, want one of %v", c.About, got, c.Reasons)
			}
			for _, f := range v.Reasons {
				if !slices.Contains(c.Reasons, f.Code) {
					t.Errorf("%s: reason %s is beside the point: %s", c.About, f.Code, f.Message)
				}
			}
			for _, want := range c.Warnings {
				if !slices.Contains(codes(v.Warnings), want) {
					t.Errorf("%s: warnings %v, want %s among them", c.About, codes(v.Warnings), want)
				}
			}
			if v.Certificates() != c.Certificates {
				t.Errorf("%s: %d certificates, want %d", c.About, v.Certificates(), c.Certificates)
			}
		})
	}
}
