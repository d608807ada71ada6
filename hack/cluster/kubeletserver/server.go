// Package kubeletserver stands in for the HTTPS server of a kubelet on a simulated node, where it matters: whom it lets
// in. It is put together from the packages, and in the way, that the kubelet itself uses (k8s.io/kubernetes
// cmd/kubelet/app/auth.go BuildAuthn and BuildAuthz, pkg/kubelet/kubelet.go NewMainKubelet): the client-CA file is
// watched by DynamicFileCAContent, requests are judged by the delegating authenticator and authorizer, and the
// advertised CAs follow the file as they do behind the gate ReloadKubeletClientCAFile. Nothing here decides about trust.
package kubeletserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// Server answers as a kubelet's server does.
type Server struct {
	auth nodeutil.Auth
	tls  *tls.Config
	run  []func(ctx context.Context)
}

// New makes a server that trusts the client CAs in a file. Like the kubelet, it refuses to start without a good one.
func New(clientCAFile, certFile, keyFile, node string, client kubernetes.Interface) (*Server, error) {
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", clientCAFile)
	if err != nil {
		return nil, fmt.Errorf("unable to load client CA file %s: %w", clientCAFile, err)
	}
	auth, err := nodeutil.WebhookAuth(client, node, func(config *nodeutil.WebhookAuthConfig) error {
		config.AuthnConfig.Anonymous = &apiserver.AnonymousAuthConfig{Enabled: false}
		config.AuthnConfig.ClientCertificateCAContentProvider = ca
		return nil
	})
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	advertised := dynamiccertificates.NewDynamicServingCertificateController(config.Clone(), ca, nil, nil, nil)
	if err := advertised.RunOnce(); err != nil {
		return nil, fmt.Errorf("unable to load client CA file %s: %w", clientCAFile, err)
	}
	config.GetConfigForClient = advertised.GetConfigForClient
	return &Server{auth: auth, tls: config, run: []func(context.Context){
		func(ctx context.Context) { ca.Run(ctx, 1) },
		func(ctx context.Context) { advertised.Run(1, ctx.Done()) },
	}}, nil
}

// Serve serves on the listeners until the context ends. Beside the handler's routes, which are those of pods, it has
// /healthz and /whoami; all of them need an authenticated and authorized client.
func (s *Server) Serve(ctx context.Context, handler http.Handler, listeners ...net.Listener) error {
	for _, run := range s.run {
		go run(ctx)
	}
	mux := http.NewServeMux()
	mux.Handle("/", handler)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("/whoami", s.whoami)
	server := &http.Server{Handler: nodeutil.WithAuth(s.auth, mux), TLSConfig: s.tls, ReadHeaderTimeout: 30 * time.Second}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.ServeTLS(l, "", "") }()
	}
	select {
	case <-ctx.Done():
		return server.Close()
	case err := <-failed:
		return errors.Join(err, server.Close())
	}
}

// whoami tells the client as whom it was authenticated.
func (s *Server) whoami(w http.ResponseWriter, r *http.Request) {
	response, ok, err := s.auth.AuthenticateRequest(r)
	if err != nil || !ok {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // a client that went away is no loss
		"user": response.User.GetName(), "groups": response.User.GetGroups(),
	})
}
