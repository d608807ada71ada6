// Command loader is the part of a kubelet that loads its client CAs: it watches a file with the kubelet's own package and
// prints the SHA-256 of what it holds, at first and after each change, until its standard input ends.
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

func main() {
	content, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	content.AddListener(printer{content})
	printer{content}.Enqueue()
	ctx, stop := context.WithCancel(context.Background())
	go content.Run(ctx, 1)
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
}

// printer prints what the loader holds.
type printer struct {
	content *dynamiccertificates.DynamicFileCAContent
}

// Enqueue is called after each change (dynamiccertificates.Listener).
func (p printer) Enqueue() {
	fmt.Fprintf(os.Stdout, "%x\n", sha256.Sum256(p.content.CurrentCABundleContent()))
}
