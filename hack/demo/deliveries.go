package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/hack/lab"
)

// windowsNodes are the nodes of the story.
var windowsNodes = []string{"win-1", "win-2", "win-3"}

// deliveries shows the Jobs as they come and go until every node's file holds the signer.
func (s *story) deliveries(ctx context.Context, signer string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	want, err := s.lab.Cluster(ctx, "signer", "bundle", signer)
	if err != nil {
		return err
	}
	client, _, err := s.lab.Client()
	if err != nil {
		return err
	}
	last := ""
	for {
		done := s.holding(want)
		jobs, err := client.BatchV1().Jobs(lab.JobsNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("only %d of %d nodes have the bundle: %w", done, len(windowsNodes), err)
		}
		succeeded := 0
		for i := range jobs.Items {
			succeeded += int(jobs.Items[i].Status.Succeeded)
		}
		line := fmt.Sprintf("%s  %d of %d nodes hold it; %d Jobs, %d succeeded\n",
			bar(done, len(windowsNodes)), done, len(windowsNodes), len(jobs.Items), succeeded)
		if line != last {
			s.printf("%s", line)
			last = line
		}
		if done == len(windowsNodes) && succeeded == len(jobs.Items) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d nodes have the bundle: %w", done, len(windowsNodes), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// bar draws progress.
func bar(done, of int) string {
	return "[" + strings.Repeat("#", done) + strings.Repeat(".", of-done) + "]"
}

// holding counts the nodes whose file holds every certificate of the bundle.
func (s *story) holding(want string) int {
	wanted, _ := bundle.Parse([]byte(want))
	n := 0
	for _, node := range windowsNodes {
		data, err := os.ReadFile(s.lab.Disk(node, "k", "kubelet-ca.crt"))
		if err != nil {
			continue
		}
		if have, _ := bundle.Parse(data); len(bundle.Missing(wanted, have)) == 0 {
			n++
		}
	}
	return n
}

// describe names the certificates of a node's file.
func (s *story) describe(node string, data []byte) error {
	have, findings := bundle.Parse(data)
	if len(findings) > 0 {
		return fmt.Errorf("the file of %s is not well-formed: %s", node, findings[0].Message)
	}
	s.printf("%s  C:\\k\\kubelet-ca.crt  sha256 %s\n", node, bundle.Hash(data))
	for _, c := range have.Certificates {
		s.printf("    %s, until %s\n", c.X509.Subject, c.X509.NotAfter.Format(time.DateOnly))
	}
	return nil
}

// ask sends a request to every kubelet with a client certificate of the signer, until all answer with the status.
func (s *story) ask(ctx context.Context, signer, status string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, node := range windowsNodes {
		for {
			answer, err := s.lab.Cluster(ctx, "ask", node, "--signer", signer)
			answer = strings.TrimSpace(answer)
			if strings.HasPrefix(answer, status) {
				s.printf("  %s answers %s\n", node, answer)
				break
			}
			select {
			case <-ctx.Done():
				return errors.Join(fmt.Errorf("%s answers %q to a client of the signer %s, not %s", node, answer, signer, status), err)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

// end says how to go on.
func (s *story) end() {
	s.printf("\n%sThe cluster is up. Try next:%s\n", s.bold, s.normal)
	s.printf("  export KUBECONFIG='%s' PATH='%s/bin':\"$PATH\"\n", s.lab.Kubeconfig(), s.lab.Dir)
	s.printf("  kubectl get jobs -n %s\n", lab.JobsNamespace)
	s.printf("  kubectl delete job --all -n %s             # each is made again: the Job is the record\n", lab.JobsNamespace)
	s.printf("  kubectl get events -n %s\n", lab.GuardedNamespace)
	s.printf("  go run ./cmd/kubectl-courier status          # one line per Windows node\n")
	s.printf("  go run -C hack/cluster . --dir '%s' add-node win-4\n", s.lab.Dir)
	s.printf("  make demo-down                               # no process and no file is left\n")
}
