package docs_test

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kubelet-ca-courier/hack/lab/labtest"
)

// clustersReadme is followed on its own: it begins with a cluster.
const clustersReadme = "hack/cluster/README.md"

// command is what a document tells its reader to type.
type command struct {
	document string // below the root of the repository
	text     string // of a block marked sh: all of its lines
	prose    bool   // it stands in the middle of a sentence
}

var (
	// fenced matches a fenced block with its language.
	fenced = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	// indented matches a line of an indented block.
	indented = regexp.MustCompile(`(?m)^    (\S.*)$`)
	// quoted matches what stands in backticks in a sentence.
	quoted = regexp.MustCompile("(?s)`([^`]+)`")
	// typed matches what is typed into a shell, and not the name of something.
	typed = regexp.MustCompile(`^(kubectl|go|make|docker|openssl|git|helm|oc|curl) \S|^hack/[a-z]+\.sh( |$)|^courier-node(\.exe)? -|^! |^\$ `)
	// before matches what may stand in front of a command.
	before = regexp.MustCompile(`^(nice|sudo|[A-Z_]+=\S+) `)
	// comment matches the end of a line that is not for the shell.
	comment = regexp.MustCompile(`\s+# .*$`)
)

// commandsOf returns the commands of a document. A block of another language than sh, console and powershell may hold none.
func commandsOf(t *testing.T, document, text string) []command {
	t.Helper()
	var all []command
	add := func(text string, prose bool) { all = append(all, command{document, text, prose}) }
	for _, block := range fenced.FindAllStringSubmatch(text, -1) {
		switch language, body := block[1], block[2]; language {
		case "sh":
			add(body, false)
		case "console":
			for line := range strings.Lines(body) {
				if line, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ "); found {
					add(comment.ReplaceAllString(line, ""), false)
				}
			}
		case "powershell":
			add(strings.TrimSpace(body), false)
		default:
			for line := range strings.Lines(body) {
				if typed.MatchString(line) {
					t.Errorf("%s has a command in a block marked %q, so that nothing runs it: %s", document, language, line)
				}
			}
		}
	}
	text = fenced.ReplaceAllString(text, "")
	if strings.Contains(text, "```") {
		t.Errorf("%s has a fenced block that this test does not see", document)
	}
	for _, line := range indented.FindAllStringSubmatch(text, -1) {
		if typed.MatchString(line[1]) {
			add(comment.ReplaceAllString(line[1], ""), false)
		}
	}
	for _, span := range quoted.FindAllStringSubmatch(indented.ReplaceAllString(text, ""), -1) {
		if span := before.ReplaceAllString(strings.Join(strings.Fields(span[1]), " "), ""); typed.MatchString(span) {
			add(span, true)
		}
	}
	return all
}

// documentation returns the commands of all documents of the repository, each once in a document.
func documentation(t *testing.T, root string) []command {
	t.Helper()
	files := []string{"README.md", "CONTRIBUTING.md", clustersReadme}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) == ".md" {
			files = append(files, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []command
	for _, file := range files {
		for _, c := range commandsOf(t, file, string(labtest.Must[[]byte](t)(os.ReadFile(filepath.Join(root, file))))) {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	if len(all) < 80 {
		t.Fatalf("only %d commands are found in %d documents", len(all), len(files))
	}
	return all
}

// names are what begins like a command in a sentence and is no more than the name of one, and what cannot be run here.
var names = map[string]string{
	"kubectl logs": "name", "kubectl apply": "name", "kubectl debug": "name", "kubectl courier check": "name",
	"kubectl rollout undo": "advised against", "kubectl rollout history": "advised against",
	"go run ./hack/image":                      "name; install/README.md runs it",
	"openssl x509 -noout -fingerprint -sha256": "name of a form; operate.md runs it",
	"docker buildx build":                      "needs Docker; hack/image_test.go reads the Dockerfile with BuildKit's parser",
	"make test":                                "runs this test",
	"make scale N=…":                           "name",
}

// TestTheCommandsForDevelopersAreThere looks up what the documents say about make, scripts and go: targets and scripts are
// there, packages have the tests and flags that are asked for. The tests themselves are run by make test.
func TestTheCommandsForDevelopersAreThere(t *testing.T) {
	root := filepath.Clean(labtest.Must[string](t)(filepath.Abs("../..")))
	seen, stale := map[string]bool{}, maps.Clone(names)
	for _, c := range documentation(t, root) {
		_, isName := names[c.text]
		delete(stale, c.text)
		if isName || seen[c.text] || onCluster(c) {
			continue
		}
		seen[c.text] = true
		t.Run(c.text, func(t *testing.T) {
			script := lookUp(t, c)
			cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s has %q: %v\n$ %s\n%s", c.document, c.text, err, script, out)
			}
			if pattern := runs.FindStringSubmatch(c.text); pattern != nil && !regexp.MustCompile("(?m)^(Test|Benchmark|Fuzz).*("+pattern[1]+")").Match(out) {
				t.Errorf("%s has %q, and there is no test of that name:\n%s", c.document, c.text, out)
			}
		})
	}
	for name := range stale {
		t.Errorf("no document has %q any more", name)
	}
	if len(seen) < 15 {
		t.Errorf("only %d commands were looked up", len(seen))
	}
}

// runs matches the pattern of a test or benchmark that is asked for.
var runs = regexp.MustCompile(`-(?:run|bench) '?([^' ]+)`)

// lookUp returns what finds out whether a developer's command is still there.
func lookUp(t *testing.T, c command) string {
	t.Helper()
	switch program, rest, _ := strings.Cut(c.text, " "); {
	case strings.Contains(c.text, "go test "):
		return c.text + " -list . -vet=off"
	case strings.HasPrefix(program, "courier-node") && c.document == "docs/landing.md":
		return "go test ./test/wine -vet=off -list . | grep -x TestTheCommandLineOfTheDocumentsIsUnderstood"
	case strings.HasPrefix(c.text, "go doc "):
		return c.text
	case program == "make":
		return "make -n " + rest
	case strings.HasPrefix(program, "hack/"):
		return "test -x " + program + " && bash -n " + program
	}
	t.Fatalf("%s has %q: no test knows what to do with it", c.document, c.text)
	return ""
}

// onCluster tells whether a command is run by TestEveryCommandOfTheDocumentsWorks or TestTheLocalClustersCommandsWork.
func onCluster(c command) bool {
	isBlock := strings.HasSuffix(c.text, "\n")
	return isBlock || strings.HasPrefix(c.text, "kubectl ")
}
