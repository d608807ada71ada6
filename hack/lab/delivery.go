package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/bundle"
	"kubelet-ca-courier/dispatcher"
)

// File is the kubelet's client-CA file on a Windows node, where OpenShift has it.
func (l *Lab) File(node string) string { return l.Disk(node, "k", "kubelet-ca.crt") }

// Bundle makes sure that the signers exist, and returns their CAs.
func (l *Lab) Bundle(ctx context.Context, signers ...string) (string, error) {
	for _, name := range signers {
		if err := l.Signer(ctx, name); err != nil {
			return "", err
		}
	}
	return l.Cluster(ctx, append([]string{"signer", "bundle"}, signers...)...)
}

// Publish writes the CAs of the signers into the guarded ConfigMap, in this order, and returns what nodes must end with.
func (l *Lab) Publish(ctx context.Context, signers ...string) ([]byte, error) {
	text, err := l.Bundle(ctx, signers...)
	if err != nil {
		return nil, err
	}
	if _, err := l.PatchGuarded(ctx, text); err != nil {
		return nil, err
	}
	return l.Union(ctx, text)
}

// Union returns what nodes must end with when the guarded ConfigMap holds this bundle.
func (l *Lab) Union(ctx context.Context, text string) ([]byte, error) {
	managed, err := l.Kubectl(ctx, "get", "configmap", ManagedName, "-n", ManagedNamespace, "-o", `jsonpath={.data.ca-bundle\.crt}`)
	if err != nil {
		return nil, err
	}
	guarded, findings := bundle.Parse([]byte(text))
	extra, more := bundle.Parse([]byte(managed))
	if len(findings)+len(more) > 0 {
		return nil, fmt.Errorf("the sources are not well-formed: %v %v", findings, more)
	}
	return bundle.Merge(guarded, extra).Canonical(), nil
}

// Delivered returns the Jobs by node where every one of the nodes holds the content, and has one Job that has succeeded with
// it, and there is no other Job. The error says what is not so.
func (l *Lab) Delivered(ctx context.Context, content []byte, nodes ...string) (map[string]batchv1.Job, error) {
	for _, node := range nodes {
		data, err := os.ReadFile(l.File(node))
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(data, content) {
			return nil, fmt.Errorf("%s holds other bytes, sha256 %s", node, bundle.Hash(data))
		}
	}
	return l.Succeeded(ctx, bundle.Hash(content), nodes...)
}

// Succeeded returns the Jobs by node, where there is exactly one for each of the nodes, succeeded with the bundle of that hash,
// and no other.
func (l *Lab) Succeeded(ctx context.Context, hash string, nodes ...string) (map[string]batchv1.Job, error) {
	jobs, err := l.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	for name, job := range jobs {
		if r := dispatcher.ReadRecord(&job); r.Hash != hash || r.Phase != dispatcher.Succeeded || r.Deleting {
			return nil, fmt.Errorf("the Job of %s is %s with bundle %.8s", name, r.Phase, r.Hash)
		}
	}
	for _, node := range nodes {
		if _, found := jobs[node]; !found {
			return nil, fmt.Errorf("%s has no Job", node)
		}
	}
	if len(jobs) != len(nodes) {
		return nil, fmt.Errorf("%d Jobs for %d nodes", len(jobs), len(nodes))
	}
	return jobs, nil
}

// Jobs returns the Jobs by node.
func (l *Lab) Jobs(ctx context.Context) (map[string]batchv1.Job, error) {
	client, _, err := l.Client()
	if err != nil {
		return nil, err
	}
	list, err := client.BatchV1().Jobs(JobsNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	jobs := map[string]batchv1.Job{}
	for _, job := range list.Items {
		node := dispatcher.ReadRecord(&job).NodeName
		if _, again := jobs[node]; again {
			return nil, fmt.Errorf("%s has two Jobs", node)
		}
		jobs[node] = job
	}
	return jobs, nil
}
