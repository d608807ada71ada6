package docs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"kubelet-ca-courier/hack/lab"
	"kubelet-ca-courier/hack/lab/labtest"
)

// clue is what one of the commands of operate.md shows about a node that is stuck.
type clue struct {
	command string // a part of it
	shows   string // a regular expression
}

// breaksNodesAndFindsOutWhy breaks nodes in each way of operate.md's table that can be brought about at once, runs the
// commands that it gives for a stuck node, and looks for the cause in what they print. Then it mends the nodes as the
// table says.
func (a *admin) breaksNodesAndFindsOutWhy() {
	a.t.Helper()
	must := labtest.Must[string](a.t)
	directory, readOnly, away := a.windows[0], a.windows[1], a.windows[2]
	a.check(errors.Join(os.Remove(a.File(directory)), os.Mkdir(a.File(directory), 0o755), os.Chmod(a.File(readOnly), 0o444)))
	must(a.Cluster(a.t.Context(), "notready-node", away))
	must(a.PatchGuarded(a.t.Context(), must(a.Guarded(a.t.Context()))+must(a.Bundle(a.t.Context(), "that-does-not-arrive"))))

	a.finds(directory,
		clue{"courier status", directory + ` +Failed .*exit code 5: the destination is not a place to write to`},
		clue{"describe job", `failed with exit code 5 `},
		clue{"describe pods", `(?s)error: the destination is a directory.*hint: name the file itself`},
		clue{"events", `DeliveryFailed.*exit code 5: the destination is not a place to write to`})
	a.finds(readOnly,
		clue{"courier status", readOnly + ` +Failed .*exit code 7: the disk would not take the file`},
		clue{"describe job", `failed with exit code 7 `},
		clue{"describe pods", `(?s)error: the destination is read-only.*hint: .*attrib -r`},
		clue{"events", `DeliveryFailed.*exit code 7: the disk would not take the file`})
	a.finds(away, clue{"courier status", away + ` +NotReady`})

	a.check(errors.Join(os.Remove(a.File(directory)), os.Chmod(a.File(readOnly), 0o644)))
	must(a.Cluster(a.t.Context(), "ready-node", away))
	a.sh("kubectl delete job -n kubelet-ca-courier " + readOnly) // or the next command waits until it is tried again
	a.asksAgain(directory)
	a.jobsCannotRun(directory, readOnly)
	a.findsAForeignCA(away)
}

// findsAForeignCA puts a CA that no source has into a node's file and asks, in observe mode, whose it is.
func (a *admin) findsAForeignCA(node string) {
	a.t.Helper()
	foreign := labtest.Must[string](a.t)(a.Bundle(a.t.Context(), "of-someone-else"))
	held := labtest.Must[[]byte](a.t)(os.ReadFile(a.File(node)))
	a.check(os.WriteFile(a.File(node), append(held, foreign...), 0o600))
	observe := strings.SplitN(a.blocks(a.section("install/openshift.md", "1. Observe"), "sh")[0], "\n", 2)[0]
	a.sh(observe)
	a.sh("kubectl delete job -n kubelet-ca-courier " + a.job(node))

	a.finds(node,
		clue{"courier status", node + ` +WouldRemove`},
		clue{"describe pods", `"removed":\[\{"subject":"CN=[^"]*@of-someone-else"`})
	a.sh("kubectl apply -k manifests/overlays/openshift")
	a.sh("kubectl courier status --watch --timeout=10m")
}

// jobsCannotRun names an image that is not there, and then allows no further Job; it mends both.
func (a *admin) jobsCannotRun(noImage, refused string) {
	a.t.Helper()
	a.sh("kubectl get configmap -n kubelet-ca-courier-system courier-config -o yaml | sed 's,courier/node:dev,courier/none:dev,' | kubectl replace -f -")
	a.sh("kubectl delete job -n kubelet-ca-courier " + noImage)
	a.finds(noImage, clue{"describe pods", `ImagePullBackOff`})
	a.sh("kubectl create quota -n kubelet-ca-courier no-more --hard=count/jobs.batch=0")
	labtest.Eventually(a.t, "the quota counts", func(ctx context.Context) error {
		used, err := a.Kubectl(ctx, "get", "quota", "-n", lab.JobsNamespace, "no-more", "-o", `jsonpath={.status.used.count/jobs\.batch}`)
		if used == "" {
			return errors.Join(err, errors.New("not yet"))
		}
		return err
	})
	a.sh("kubectl delete job -n kubelet-ca-courier " + refused)

	a.finds(noImage,
		clue{"courier status", noImage + ` +Slow`},
		clue{"describe pods", `(?s)ImagePullBackOff.*none:dev|none:dev.*ImagePullBackOff`})
	a.finds(refused,
		clue{"courier status", refused + ` +Blocked .*exceeded quota: no-more`},
		clue{"events", `DeliveryBlocked.*exceeded quota: no-more`})

	a.sh("kubectl delete quota -n kubelet-ca-courier no-more")
	a.sh("kubectl apply -k manifests/overlays/openshift")
	a.sh("kubectl courier status --watch --timeout=10m")
}

// finds runs the commands for a stuck node until they show the clues.
func (a *admin) finds(node string, clues ...clue) {
	a.t.Helper()
	commands := strings.Split(strings.TrimSpace(a.blocks(a.section("operate.md", "A stuck node"), "sh")[0]), "\n")
	for _, c := range clues {
		labtest.Eventually(a.t, fmt.Sprintf("%q shows what is wrong with %s", c.command, node), func(ctx context.Context) error {
			for _, command := range commands {
				if !strings.Contains(command, c.command) {
					continue
				}
				// A command may fail: `status` does as long as a node lacks the bundle.
				command = strings.NewReplacer("node/win-1", "node/"+node, "win-1", a.job(node)).Replace(command)
				out, _ := a.try(ctx, command)
				if regexp.MustCompile(c.shows).MatchString(out) {
					return nil
				}
				return fmt.Errorf("no match for %s in\n%s", c.shows, out)
			}
			return fmt.Errorf("operate.md has no such command: %q", commands)
		})
	}
}

// job is the name of a node's Job, found as operate.md says.
func (a *admin) job(node string) string {
	a.t.Helper()
	text, _ := a.try(a.t.Context(), "kubectl courier status -o json 2>&-") // it fails as long as a node lacks the bundle
	var status struct{ Nodes []struct{ Node, Job string } }
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		a.t.Fatalf("%v\n%s", err, text)
	}
	for _, n := range status.Nodes {
		if n.Node == node && n.Job != "" {
			return n.Job
		}
	}
	return node
}

// asksAgain has a node delivered to again, as operate.md says, and expects no failure any more.
func (a *admin) asksAgain(node string) {
	a.t.Helper()
	a.sh(strings.ReplaceAll(a.blocks(a.section("operate.md", "A stuck node"), "sh")[1], "win-1", node))
}

// check ends the test on an error.
func (a *admin) check(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}
