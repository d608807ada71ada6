// Package main is a placeholder while dependencies are resolved.
package main

import (
	_ "github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/virtual-kubelet/virtual-kubelet/node"
	_ "k8s.io/apiserver/pkg/server/dynamiccertificates"
	_ "k8s.io/cri-client/pkg/fake"
	_ "sigs.k8s.io/controller-runtime"
)

func main() {}
