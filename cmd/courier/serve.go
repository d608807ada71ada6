package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"kubelet-ca-courier/dispatcher"
	"kubelet-ca-courier/webhook"
)

// leaseName is the name of the lease that the leader holds, in the configuration's namespace.
const leaseName = "courier"

// reachTimeout is how long the API server may take to answer when courier starts.
const reachTimeout = 30 * time.Second

// garbage is how much may lie about before it is collected, in percent of what is in use: half of Go's default, since what
// courier holds grows with the cluster and its processor time hardly matters. GOGC in the environment goes first.
const garbage = 50

// serve runs webhook and dispatcher until ctx ends.
func serve(ctx context.Context, o *options, stderr io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	logger := newLogger(o, stderr)
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	now := dispatcher.NewServerClock(clock.RealClock{})
	config, err := connect(ctx, o, now, logger)
	if err != nil {
		return err
	}
	if err := certificatesIn(o.certDir); err != nil {
		return err
	}
	gate := webhook.Options{Host: o.bindAddress, Port: o.webhookPort, CertDir: o.certDir}
	mgr, err := newManager(config, o, gate)
	if err != nil {
		return err
	}
	settings, err := dispatcher.SetupWithManager(mgr, o.where(), now)
	if err != nil {
		return fmt.Errorf("set up the dispatcher: %w", err)
	}
	gate.Guarded = func() webhook.Ref { return guarded(settings) }
	if err := mgr.AddReadyzCheck("configuration", configured(settings)); err != nil {
		return fmt.Errorf("add the readiness check of the configuration: %w", err)
	}
	if err := webhook.SetupWithManager(mgr, gate); err != nil {
		return fmt.Errorf("set up the webhook: %w", err)
	}
	logger.Info("Starting", "version", version)
	if err := mgr.Start(ctx); err != nil {
		err = fmt.Errorf("stopped: %w", err)
		if strings.Contains(err.Error(), "leader election lost") { // sigs.k8s.io/controller-runtime/pkg/manager has no name for it
			err = hinted{err, "the API server was away, or slow, for longer than the lease is good; courier is started again"}
		}
		return err
	}
	return nil
}

// newManager makes the manager. Its webhook server starts before its caches and before it tries to lead
// (sigs.k8s.io/controller-runtime/pkg/manager, Start), so that no review ever waits for either.
func newManager(config *rest.Config, o *options, gate webhook.Options) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register types: %w", err)
	}
	where := o.where()
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         dispatcher.CacheOptions(where.Jobs),
		WebhookServer:                 webhook.NewServer(gate),
		Metrics:                       metricsserver.Options{BindAddress: o.address(o.metricsPort)},
		HealthProbeBindAddress:        o.address(o.healthPort),
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       where.Config.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 ptr.To(leaseDuration),
		RenewDeadline:                 ptr.To(renewDeadline),
		RetryPeriod:                   ptr.To(retryPeriod),
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add the health check: %w", err)
	}
	return mgr, nil
}

// guarded is what the gate guards by the configuration that applies; nothing as long as there is none.
func guarded(settings *dispatcher.ConfigStore) webhook.Ref {
	config, _ := settings.Config()
	return webhook.Ref{Namespace: config.Guarded.Namespace, Name: config.Guarded.Name, Key: config.Guarded.Key}
}

// configured keeps a replica from being Ready while it does not know what it guards: it would let everything through.
func configured(settings *dispatcher.ConfigStore) healthz.Checker {
	return func(*http.Request) error {
		if _, ok := settings.Config(); ok {
			return nil
		}
		if _, fault := settings.Fault(); fault != nil {
			return fmt.Errorf("the configuration cannot be used: %w", fault)
		}
		return errors.New("the configuration was not read yet")
	}
}

// connect finds the API server and makes sure that it answers; the clock follows its answers. There is no limit on the rate
// of requests on this side: API Priority and Fairness protects the server.
func connect(ctx context.Context, o *options, now *dispatcher.ServerClock, logger logr.Logger) (*rest.Config, error) {
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := expectAnswers(); err != nil {
		return nil, fmt.Errorf("set how long to wait for answers: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "kubelet-ca-courier/" + version // in the API server's audit log, beside every write
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.Wrap(now.Follow)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return newAnswers(next, logger) })
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, hinted{fmt.Errorf("use the kubeconfig: %w", err), "check the certificates and the server in it"}
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	err = client.RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
	switch {
	case err == nil:
	case busy(err): // it is there; what is asked of it from now on is asked again
		logger.Info("the API server is busy", "cause", err.Error())
	default:
		return nil, hinted{fmt.Errorf("the API server at %s does not answer: %w", config.Host, err),
			"check the server's address, the network policy, and the credentials"}
	}
	return config, nil
}

// busy reports whether an answer says that the API server cannot serve the request now, be it anyone's or courier's.
func busy(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer) &&
		(answer.Status().Code == http.StatusTooManyRequests || answer.Status().Code >= http.StatusInternalServerError)
}

// restConfig reads the kubeconfig, or the pod's service account where none is given.
func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, hinted{fmt.Errorf("find the API server: %w", err), "outside of a cluster, give --kubeconfig"}
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, hinted{fmt.Errorf("read the kubeconfig %s: %w", kubeconfig, err), "kubectl config view shows what is in it"}
	}
	return config, nil
}

// certificatesIn says early and clearly that the webhook could not serve.
func certificatesIn(dir string) error {
	for _, name := range []string{"tls.crt", "tls.key"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return hinted{fmt.Errorf("read the webhook's certificate: %w", err),
				"--cert-dir is where the Secret courier-webhook-tls is mounted"}
		}
	}
	return nil
}

// newLogger writes structured lines. Errors carry no stack trace: they say what was being done instead.
func newLogger(o *options, w io.Writer) logr.Logger {
	options := &slog.HandlerOptions{Level: slog.Level(-o.verbosity)}
	if o.logFormat == "json" {
		return logr.FromSlogHandler(slog.NewJSONHandler(w, options))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(w, options))
}
