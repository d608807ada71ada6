package cli

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelet-ca-courier/hack/cluster/layout"
)

// run runs a command line and returns its exit status and what it wrote.
func run(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	status = Run(t.Context(), args, &out, &err)
	return status, out.String(), err.String()
}

// cluster writes the record of a cluster whose processes were never started.
func cluster(t *testing.T) layout.Cluster {
	t.Helper()
	c := layout.Cluster{Dir: t.TempDir(), Signer: firstSigner, APIServer: "https://127.0.0.1:1"}
	if err := c.Save(); err != nil {
		t.Fatal(err)
	}
	if _, err := newSigner(c, firstSigner, 0); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestBadInputIsAnsweredByOneLineAndAHint(t *testing.T) {
	empty, c := t.TempDir(), cluster(t)
	for name, test := range map[string]struct {
		args   []string
		status int
		line   string
	}{
		"a command that does not exist":             {[]string{"levitate"}, 2, `error: unknown command "levitate"`},
		"a flag that does not exist":                {[]string{"up", "--fast"}, 2, "error: unknown flag: --fast"},
		"an argument too many":                      {[]string{"down", "now"}, 2, `error: unexpected argument "now"`},
		"an argument too few":                       {[]string{"kill"}, 2, "error: missing argument NAME"},
		"an output format that does not exist":      {[]string{"status", "-o", "xml"}, 2, `error: unknown output format "xml"`},
		"no cluster in the directory":               {[]string{"status", "--dir", empty}, 1, "error: there is no cluster in " + empty},
		"a process that does not exist":             {[]string{"kill", "etcd", "--dir", c.Dir}, 1, `error: there is no process called "etcd"`},
		"a node that does not exist":                {[]string{"ask", "win-1", "--dir", c.Dir}, 1, `error: there is no simulated node called "win-1"`},
		"a node name that cannot be":                {[]string{"add-node", "Win_1", "--program", "native", "--dir", c.Dir}, 2, `error: not a node name: "Win_1"`},
		"an operating system that is not simulated": {[]string{"add-node", "n", "--os", "plan9", "--dir", c.Dir}, 2, `error: a node's operating system is windows or linux, not "plan9"`},
		"a mount style that does not exist":         {[]string{"add-node", "n", "--mount-style", "x", "--dir", c.Dir}, 2, `error: a mount style is bind or sandbox, not "x"`},
		"an address that is none":                   {[]string{"add-node", "n", "--address", "here", "--dir", c.Dir}, 2, `error: not an IP address: "here"`},
		"a CA file that is missing":                 {[]string{"add-node", "n", "--ca-file", "/none", "--dir", c.Dir}, 1, "error: open /none: no such file or directory"},
		"a signer that does not exist":              {[]string{"resign-client", "nobody", "--dir", c.Dir}, 1, `error: there is no signer called "nobody"`},
		"a signer that exists already":              {[]string{"signer", "new", firstSigner, "--dir", c.Dir}, 1, `error: there is a signer called "first" already`},
		"an image that is not simulated":            {[]string{"image", "add", "nginx:1", "/none", "--dir", c.Dir}, 1, `error: "nginx:1" is no image that is simulated`},
		"an image without a tag":                    {[]string{"image", "add", "kubelet-ca-courier/node", "/none", "--dir", c.Dir}, 2, `error: "kubelet-ca-courier/node" has no tag`},
		"an image of a program that is missing":     {[]string{"image", "add", "kubelet-ca-courier/node:1", "/none", "--dir", c.Dir}, 1, "error: open /none: no such file or directory"},
		"an image of what is no program":            {[]string{"image", "add", "kubelet-ca-courier/node:1", "cli.go", "--dir", c.Dir}, 1, "error: cli.go is no program for Linux or Windows"},
		"an image half named":                       {[]string{"image", "add", "kubelet-ca-courier/node:1"}, 2, "error: missing argument PROGRAM"},
		"a signer's name that cannot be":            {[]string{"signer", "new", "../x", "--dir", c.Dir}, 2, `error: a signer's name holds lower-case letters, digits and dashes: "../x"`},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := run(t, test.args...)
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if status != test.status || stdout != "" {
				t.Errorf("status %d, want %d; stdout %q", status, test.status, stdout)
			}
			if len(lines) != 2 || !strings.HasPrefix(lines[0], test.line) || !strings.HasPrefix(lines[1], "hint: ") {
				t.Errorf("stderr:\n%s\nwant %q and a hint", stderr, test.line)
			}
		})
	}
}

func TestATagIsGivenAProgramOfItsOwn(t *testing.T) {
	c := cluster(t)
	add := func(reference, content string) (status int, stdout, stderr string) {
		program := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(program, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return run(t, "image", "add", reference, program, "--dir", c.Dir)
	}
	for _, content := range []string{"\x7fELF, the first", "MZ, for Windows", "\x7fELF, another"} {
		windows := strings.HasPrefix(content, "MZ")
		status, stdout, stderr := add("registry.example/kubelet-ca-courier/node:v1", content)
		if status != 0 {
			t.Fatal(stderr)
		}
		image, _ := layout.ParseImage("kubelet-ca-courier/node:v1")
		path, there := c.ImageProgram(image, windows)
		if !there || stdout != path+"\n" {
			t.Fatalf("the program is %s, there: %t; the command says %q", path, there, stdout)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != content || info.Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %s and holds %q (%v)", path, info.Mode(), data, err)
		}
	}
	if status, _, stderr := add("kubelet-ca-courier/manager:v1", "MZ"); status != 1 || !strings.Contains(stderr, "does not run") {
		t.Errorf("a manager for Windows: status %d, %s", status, stderr)
	}
}

func TestDownWithoutAClusterIsNoError(t *testing.T) {
	if status, _, stderr := run(t, "down", "--dir", t.TempDir()); status != 0 || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
}

func TestSignersAreListedAndBundled(t *testing.T) {
	c := cluster(t)
	if status, _, stderr := run(t, "signer", "new", "second", "--dir", c.Dir); status != 0 {
		t.Fatal(stderr)
	}
	if _, stdout, _ := run(t, "signer", "list", "--dir", c.Dir); stdout != "* first\n  second\n" {
		t.Errorf("list: %q", stdout)
	}
	if _, stdout, _ := run(t, "signer", "bundle", "first", "second", "--dir", c.Dir); strings.Count(stdout, "BEGIN CERTIFICATE") != 2 {
		t.Errorf("bundle: %q", stdout)
	}
}

func TestAPortThatIsTakenIsAvoided(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := listener.Addr().(*net.TCPAddr).Port
	port, err := freePort("127.0.0.1", taken)
	if err != nil || port == taken {
		t.Errorf("port %d (%v), want another than %d", port, err, taken)
	}
}

func TestEachClusterHasASlotOfItsOwn(t *testing.T) {
	cache, one, two := t.TempDir(), filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	first, err := allocate(cache, one)
	if err != nil {
		t.Fatal(err)
	}
	second, err := allocate(cache, two)
	if err != nil {
		t.Fatal(err)
	}
	if first.Slot == second.Slot {
		t.Errorf("both have slot %d", first.Slot)
	}
	if err := release(cache, first); err != nil {
		t.Fatal(err)
	}
	third, err := allocate(cache, filepath.Join(t.TempDir(), "three"))
	if err != nil || third.Slot != first.Slot {
		t.Errorf("slot %d (%v), want %d, which was given back", third.Slot, err, first.Slot)
	}
	if err := os.RemoveAll(two); err != nil { // somebody removed the directory and nothing else
		t.Fatal(err)
	}
	if fourth, err := allocate(cache, filepath.Join(t.TempDir(), "four")); err != nil || fourth.Slot != second.Slot {
		t.Errorf("slot %d (%v), want %d, whose cluster is gone", fourth.Slot, err, second.Slot)
	}
}

func TestNodesGetAddressesOfTheirOwn(t *testing.T) {
	c := cluster(t)
	seen := map[string]bool{}
	for _, name := range []string{"win-1", "win-2", "a.b-c"} {
		n, err := newNode(c, name, layout.Node{OS: "windows"})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SaveNode(n); err != nil {
			t.Fatal(err)
		}
		if seen[n.Local] || !strings.HasPrefix(n.BootID, "boot-") {
			t.Errorf("%s has address %s, boot ID %s", name, n.Local, n.BootID)
		}
		seen[n.Local] = true
	}
}
