package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// defaultSelector picks the nodes that courier delivers to.
	defaultSelector = corev1.LabelOSStable + "=windows"
	// witnessSelector picks nodes whose file something else keeps: what they answer tells our fault from another's.
	witnessSelector = corev1.LabelOSStable + "=linux"
	// witnesses is how many of those are asked.
	witnesses = 3
	// defaultProbeTimeout is how long a kubelet may take, unless --request-timeout says otherwise.
	defaultProbeTimeout = 15 * time.Second
)

// apiServerSecret is where OpenShift keeps the client certificate that its API servers show to kubelets.
var apiServerSecret = struct{ namespace, name string }{"openshift-kube-apiserver", "kubelet-client"}

// verification is the report of verify.
type verification struct {
	Nodes   int     `json:"nodes"`
	Trusted int     `json:"trusted"`
	Results []probe `json:"results"`
}

// verifyOptions are the flags of verify.
type verifyOptions struct {
	cli
	selector    string
	parallel    int
	certificate string
}

// newVerifyCommand returns the command that asks every node whether it accepts the API server now.
func newVerifyCommand(c cli) *cobra.Command {
	o := verifyOptions{cli: c}
	output := newOutputFlags()
	cmd := &cobra.Command{
		Use:   "verify [NODE...]",
		Short: "Ask every Windows node, through the API server, whether it accepts the API server now",
		Long: `Ask every Windows node, through the API server's node proxy, whether it accepts the API server now.

This is the proof that counts: the request travels from the API server to the kubelet with the API server's current
client certificate. It uses your own rights, and needs "get" on "nodes/proxy".

Exit status: 0 when every node accepts the API server, 1 when one does not, 2 when the question could not be asked.`,
		Example: `  kubectl courier verify
  kubectl courier verify win-1 win-2 -o json`,
		ValidArgsFunction: c.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.validate(); err != nil {
				return err
			}
			v, err := o.run(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := output.write(c.streams.Out, v.report(c.colours(output))); err != nil {
				return err
			}
			if v.Trusted < v.Nodes {
				return errAnswerIsNo
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.selector, "selector", "l", defaultSelector, "labels of the nodes to ask")
	flags.IntVar(&o.parallel, "parallel", 64, "how many nodes to ask at a time")
	flags.StringVar(&o.certificate, "apiserver-certificate", "",
		"file with the client certificate that kube-apiserver shows to kubelets, to look into its validity "+
			"(kubeadm: /etc/kubernetes/pki/apiserver-kubelet-client.crt; on OpenShift it is found by itself)")
	output.print.AddFlags(cmd)
	return cmd
}

// run asks the nodes.
func (o *verifyOptions) run(ctx context.Context, names []string) (*verification, error) {
	if o.parallel < 1 {
		return nil, usageError("--parallel has to be at least 1", "")
	}
	client, err := o.clientset()
	if err != nil {
		return nil, err
	}
	if err := mayProxy(ctx, client); err != nil {
		return nil, err
	}
	nodes, err := findNodes(ctx, client, o.selector, names)
	if err != nil {
		return nil, err
	}
	p, err := o.prober(client)
	if err != nil {
		return nil, err
	}
	bar := o.progress("asking", len(nodes))
	probes := p.all(ctx, nodes, bar.step)
	bar.end()

	if blame := needsWitness(probes); blame {
		linux, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: witnessSelector, Limit: witnesses})
		if err != nil {
			return nil, fmt.Errorf("listing the Linux nodes: %w", err)
		}
		certificate, err := o.apiServerCertificate(ctx, client)
		if err != nil {
			return nil, err
		}
		explainUnauthorized(probes, p.all(ctx, linux.Items, func() {}), certificate, time.Now())
	}
	return newVerification(probes), nil
}

// prober returns what asks the nodes.
func (o *verifyOptions) prober(client kubernetes.Interface) (prober, error) {
	config, err := o.restConfig()
	if err != nil {
		return prober{}, err
	}
	plain, err := rest.HTTPClientFor(config)
	if err != nil {
		return prober{}, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return prober{
		http: plain, paths: client.CoreV1().RESTClient(), timeout: o.timeout(defaultProbeTimeout), parallel: o.parallel,
	}, nil
}

// newVerification counts the answers.
func newVerification(probes []probe) *verification {
	v := &verification{Nodes: len(probes), Results: probes}
	for _, p := range probes {
		if p.Answer == answerTrusted {
			v.Trusted++
		}
	}
	return v
}

// needsWitness says whether the answers leave open who is to blame: nodes refuse and none accepts.
func needsWitness(probes []probe) bool {
	is := func(a answer) func(probe) bool { return func(p probe) bool { return p.Answer == a } }
	return slices.ContainsFunc(probes, is(answerUnauthorized)) && !slices.ContainsFunc(probes, is(answerTrusted))
}

// explainUnauthorized says of refusals whether the node's file is to blame or the API server's own certificate: one that is
// out of its time, or one that nodes refuse whose file is none of ours.
func explainUnauthorized(probes, witnesses []probe, certificate *x509.Certificate, now time.Time) {
	var detail string
	switch {
	case certificate != nil && now.After(certificate.NotAfter):
		detail = "the API server's client certificate expired at " + certificate.NotAfter.UTC().Format(time.RFC3339)
	case certificate != nil && now.Before(certificate.NotBefore):
		detail = "the API server's client certificate is valid only from " + certificate.NotBefore.UTC().Format(time.RFC3339)
	case certificate != nil: // it is valid, so what is missing is its CA, wherever else that is missing too
		setDetail(probes, answerUnauthorized, "the kubelet does not trust the signer "+certificate.Issuer.String())
		return
	case needsWitness(witnesses):
		detail = "Linux nodes refuse the API server too: its client certificate has expired, or no node has its CA"
	default:
		return
	}
	setDetail(probes, answerClientCertificate, detail)
}

// setDetail says more about the nodes that refused.
func setDetail(probes []probe, kind answer, detail string) {
	for i := range probes {
		if probes[i].Answer == answerUnauthorized {
			probes[i].Answer, probes[i].Detail = kind, detail
		}
	}
}

// report puts the answers into a table.
func (v *verification) report(c colours) report {
	r := report{
		kind: "Verification",
		data: v,
		columns: []metav1.TableColumnDefinition{
			column("Node", false), column("Ready", false), column("Answer", false), column("Detail", false),
		},
	}
	switch {
	case v.Nodes == 0:
		r.summary = []string{"no node to ask"}
	case v.Trusted == v.Nodes:
		r.summary = []string{c.good(fmt.Sprintf("all %d nodes accept the API server", v.Nodes))}
	default:
		r.summary = []string{c.bad(fmt.Sprintf("%d of %d nodes do not accept the API server: %s",
			v.Nodes-v.Trusted, v.Nodes, v.countFailures()))}
	}
	for _, wanted := range []bool{false, true} {
		for _, p := range v.Results {
			if (p.Answer == answerTrusted) == wanted {
				r.rows = append(r.rows, row{
					cells: []any{p.Node, p.Ready, string(p.Answer), p.Detail},
					quiet: wanted,
				})
			}
		}
	}
	return r
}

// countFailures lists the kinds of failure with their numbers.
func (v *verification) countFailures() string {
	var parts []string
	for _, kind := range []answer{answerUnauthorized, answerClientCertificate, answerUnreachable, answerFailed} {
		n := 0
		for _, p := range v.Results {
			if p.Answer == kind {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind))
		}
	}
	return strings.Join(parts, ", ")
}

// mayProxy says early and clearly that the caller lacks the one right that verify needs.
func mayProxy(ctx context.Context, client kubernetes.Interface) error {
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Subresource: "proxy"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("asking for the rights to nodes/proxy: %w", err)
	}
	if !review.Status.Allowed {
		return withHint(errors.New("you may not get nodes/proxy"), "use an account of a cluster administrator")
	}
	return nil
}

// findNodes returns the named nodes, or those that the selector picks, in the order of their names.
func findNodes(ctx context.Context, client kubernetes.Interface, selector string, names []string) ([]corev1.Node, error) {
	var nodes []corev1.Node
	for _, name := range names {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, *node)
	}
	if len(names) == 0 {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		nodes = list.Items
	}
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// apiServerCertificate returns the client certificate that the API server shows to kubelets, or nil where it cannot be had.
func (o *verifyOptions) apiServerCertificate(ctx context.Context, client kubernetes.Interface) (*x509.Certificate, error) {
	var data []byte
	if o.certificate != "" {
		var err error
		if data, err = os.ReadFile(o.certificate); err != nil {
			return nil, fmt.Errorf("reading the API server's certificate: %w", err)
		}
	} else {
		secret, err := client.CoreV1().Secrets(apiServerSecret.namespace).Get(ctx, apiServerSecret.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("reading the API server's certificate: %w", err)
		}
		data = secret.Data[corev1.TLSCertKey]
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("the API server's certificate is not PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the API server's certificate: %w", err)
	}
	return certificate, nil
}
