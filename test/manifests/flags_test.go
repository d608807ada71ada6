package manifests_test

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

// landingOptions is where the landing's flags are.
const landingOptions = "../../cmd/courier-node/options.go"

// landingFlags returns the names of the landing's flags, as they are defined on its flag set.
func landingFlags(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(gotoken.NewFileSet(), landingOptions, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if receiver, ok := method.X.(*ast.Ident); !ok || receiver.Name != "flags" {
			return true
		}
		for _, argument := range call.Args { // the first string is the name
			if literal, ok := argument.(*ast.BasicLit); ok && literal.Kind == gotoken.STRING {
				name, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, name)
				return true
			}
		}
		return true
	})
	return names
}

// landingValues are what flags that need one are given here.
var landingValues = map[string]string{
	"source": `C:\x`, "sha256": "00", "destination": `C:\x`, "confirm": "127.0.0.1:10250", "confirm-timeout": "1m", "patience": "1m",
	"termination-message": `C:\x`,
}

// TestFlagsOfTheLandingAreJudgedAlikeBySettingsAndPolicy gives each of the landing's flags to an admin, and to whoever stole
// the manager's account: both get the same answer, but for the one that the dispatcher itself adds.
func TestFlagsOfTheLandingAreJudgedAlikeBySettingsAndPolicy(t *testing.T) {
	want := map[string]bool{ // whether an admin may give it
		"source": false, "sha256": false, "destination": false, "check": false, "dry-run": false, "termination-message": false,
		"create-parent": true, "confirm": true, "confirm-timeout": true, "patience": true,
	}
	flags := landingFlags(t)
	if len(flags) != len(want) {
		t.Fatalf("the landing has the flags %v, this test knows %v", flags, want)
	}
	s := startWith(t, "openshift")
	s.awaitPolicies(t)
	manager := s.as(t, managerAccount, "")
	data := find[corev1.ConfigMap](t, s.objects, "ConfigMap", "courier-config").Data
	for _, flag := range flags {
		forms := [][]string{{"--" + flag}}
		if value := landingValues[flag]; value != "" {
			forms = [][]string{{"--" + flag, value}, {"--" + flag + "=" + value}}
		}
		for _, arguments := range forms {
			t.Run(arguments[len(arguments)-1]+" for "+flag, func(t *testing.T) {
				text := data[dispatcher.SettingsKey] + "\nextraArgs:\n"
				for _, argument := range arguments {
					text += "- '" + argument + "'\n"
				}
				_, fault := dispatcher.ParseConfig(map[string]string{dispatcher.SettingsKey: text})
				allowed, known := want[flag]
				if !known || allowed != (fault == nil) {
					t.Errorf("the settings say %v, want allowed %t (known %t)", fault, allowed, known)
				}
				job := realJob(t, s.objects, func(c *dispatcher.Config) { c.ExtraArgs = arguments })
				refusal := manager.Create(t.Context(), job, client.DryRunAll)
				if policy := allowed || flag == "dry-run"; policy != (refusal == nil) {
					t.Errorf("the policy says %v, want allowed %t", refusal, policy)
				}
			})
		}
	}
	for flag := range want {
		if !slices.Contains(flags, flag) {
			t.Errorf("the landing has no flag %s any more", flag)
		}
	}
}
