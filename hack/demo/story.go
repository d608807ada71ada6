package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"kubelet-ca-courier/hack/lab"
)

// story is the demo in progress.
type story struct {
	lab    *lab.Lab
	out    io.Writer
	bold   string
	dim    string
	normal string
	step   int
	// signer is the new one. Each telling has its own, so that a demo that is up can be shown again.
	signer string
}

// newStory returns a story told to the writer, in colour where that is a terminal.
func newStory(l *lab.Lab, out io.Writer) *story {
	s := &story{lab: l, out: out, signer: "signer-" + strings.ToLower(time.Now().UTC().Format("20060102t150405"))}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" {
		s.bold, s.dim, s.normal = "\x1b[1m", "\x1b[2m", "\x1b[0m"
	}
	return s
}

// tell runs the whole story.
func (s *story) tell(ctx context.Context) error {
	for _, chapter := range []struct {
		title string
		run   func(context.Context) error
	}{
		{"A control plane of real parts, and three Windows nodes", s.cluster},
		{"The courier is installed with its shipped manifests", s.install},
		{"Every Windows node has received the CA that is in use now", s.firstDelivery},
		{"Someone pastes half a certificate: refused, with the reason", s.badEdit},
		{"Someone drops the CA that is in use: refused as well", s.dropEdit},
		{"A new signer appears; no kubelet trusts it yet", s.newSigner},
		{"The right edit: the new signer joins the old one", s.rotate},
		{"Every node's file, and whom its kubelet trusts now", s.proof},
		{"The API server's client certificate is signed anew", s.resign},
	} {
		s.step++
		s.printf("\n%s%d. %s%s\n", s.bold, s.step, chapter.title, s.normal)
		if err := chapter.run(ctx); err != nil {
			return fmt.Errorf("%w\nhint: the logs are in %s/logs; `make demo-down` ends the cluster", err, s.lab.Dir)
		}
	}
	s.end()
	return nil
}

// cluster brings up the control plane and the nodes.
func (s *story) cluster(ctx context.Context) error {
	if _, err := s.lab.Cluster(ctx, "up"); err != nil {
		return err
	}
	if err := s.lab.Furnish(ctx, windowsNodes...); err != nil {
		return err
	}
	status, err := s.lab.Cluster(ctx, "status")
	if err != nil {
		return err
	}
	_, nodes, _ := strings.Cut(status, "\n\nNODE") // which program each node runs, and where its disk is
	s.printf("NODE%s", nodes)
	if !strings.Contains(nodes, "wine") {
		s.printf("left out: Wine is not installed, so the Windows nodes run the native build of the same program\n")
	}
	return s.kubectl(ctx, "get", "nodes")
}

// install applies what an admin applies.
func (s *story) install(ctx context.Context) error {
	if err := s.lab.SeedOpenShift(ctx, "first"); err != nil {
		return err
	}
	s.command("kubectl apply -k " + lab.Overlay)
	if err := s.lab.Install(ctx); err != nil {
		return err
	}
	return s.kubectl(ctx, "get", "deployments,pods", "-n", lab.ManagerNamespace)
}

// firstDelivery waits until the nodes have what is in use.
func (s *story) firstDelivery(ctx context.Context) error {
	if err := s.deliveries(ctx, "first"); err != nil {
		return err
	}
	return s.kubectl(ctx, "get", "jobs", "-n", lab.JobsNamespace)
}

// badEdit tries to write a bundle that is cut short.
func (s *story) badEdit(ctx context.Context) error {
	bundle, err := s.lab.Cluster(ctx, "signer", "bundle", "first")
	if err != nil {
		return err
	}
	return s.refused(ctx, bundle[:len(bundle)/2])
}

// dropEdit tries to write a bundle without the CA that is in use.
func (s *story) dropEdit(ctx context.Context) error {
	if err := s.lab.Signer(ctx, s.signer); err != nil {
		return err
	}
	bundle, err := s.lab.Cluster(ctx, "signer", "bundle", s.signer)
	if err != nil {
		return err
	}
	return s.refused(ctx, bundle)
}

// newSigner shows that no kubelet accepts a client certificate of the new signer.
func (s *story) newSigner(ctx context.Context) error {
	s.printf("a request to each kubelet, with a client certificate of the new signer:\n")
	return s.ask(ctx, s.signer, "401")
}

// rotate writes the right bundle and follows the Jobs.
func (s *story) rotate(ctx context.Context) error {
	old, err := s.lab.Guarded(ctx)
	if err != nil {
		return err
	}
	added, err := s.lab.Cluster(ctx, "signer", "bundle", s.signer)
	if err != nil {
		return err
	}
	s.command("kubectl patch configmap " + lab.GuardedName + " -n " + lab.GuardedNamespace + " --patch-file both-signers.yaml")
	said, err := s.lab.PatchGuarded(ctx, old+added)
	if err != nil {
		return err
	}
	s.printf("%s", said)
	if err := s.deliveries(ctx, s.signer); err != nil {
		return err
	}
	return s.kubectl(ctx, "get", "jobs", "-n", lab.JobsNamespace)
}

// proof shows the files and asks the kubelets.
func (s *story) proof(ctx context.Context) error {
	for _, node := range windowsNodes {
		data, err := os.ReadFile(s.lab.Disk(node, "k", "kubelet-ca.crt"))
		if err != nil {
			return err
		}
		if err := s.describe(node, data); err != nil {
			return err
		}
	}
	s.printf("the same request again, with a client certificate of the new signer:\n")
	return s.ask(ctx, s.signer, "200")
}

// resign does what the platform does a while after a new signer was published.
func (s *story) resign(ctx context.Context) error {
	if _, err := s.lab.Cluster(ctx, "resign-client", s.signer); err != nil {
		return err
	}
	s.printf("kube-apiserver would notice within five minutes; restarting it saves the wait\n")
	if _, err := s.lab.Cluster(ctx, "restart", "kube-apiserver"); err != nil {
		return err
	}
	for _, node := range windowsNodes {
		if err := s.kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+node+"/proxy/healthz"); err != nil {
			return err
		}
		s.printf("\n")
	}
	s.printf("every Windows kubelet accepts it: no node was drained, rebooted or restarted\n")
	return nil
}

// refused tries a bundle that the gate must refuse and shows what an admin sees.
func (s *story) refused(ctx context.Context, bundle string) error {
	s.command("kubectl patch configmap " + lab.GuardedName + " -n " + lab.GuardedNamespace + " --patch-file edit.yaml")
	_, err := s.lab.PatchGuarded(ctx, bundle)
	var failure *lab.Failure
	if !errors.As(err, &failure) {
		return errors.Join(errors.New("the edit should have been refused, and was not"), err)
	}
	s.printf("%s\n", failure.Stderr)
	return nil
}

// kubectl runs a kubectl command in front of the audience.
func (s *story) kubectl(ctx context.Context, args ...string) error {
	s.command("kubectl " + strings.Join(args, " "))
	out, err := s.lab.Kubectl(ctx, args...)
	s.printf("%s", out)
	return err
}

// command shows a command line.
func (s *story) command(line string) { s.printf("%s$ %s%s\n", s.dim, line, s.normal) }

// printf tells a part of the story. Nobody could do anything about an error of the terminal.
func (s *story) printf(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) }
