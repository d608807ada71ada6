package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubelet-ca-courier/dispatcher"
)

// options are the command line.
type options struct {
	bindAddress string
	webhookPort int
	metricsPort int
	healthPort  int
	certDir     string
	config      string
	jobs        string
	kubeconfig  string
	leaderElect bool
	verbosity   int
	logFormat   string
	version     bool
}

// newOptions returns the defaults and the flags that change them.
func newOptions() (*options, *pflag.FlagSet) {
	o := &options{}
	flags := pflag.NewFlagSet("courier", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() {}
	where := dispatcher.DefaultWhere()
	flags.StringVar(&o.config, "config", where.Config.String(), "ConfigMap with the settings, as namespace/name")
	flags.StringVar(&o.jobs, "jobs-namespace", where.Jobs, "namespace of Jobs and snapshots")
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"),
		"kubeconfig file, or KUBECONFIG; the pod's service account unless set")
	flags.StringVar(&o.bindAddress, "bind-address", "", "address to listen on; all of them unless set")
	flags.IntVar(&o.webhookPort, "webhook-port", 9443, "port of the admission webhook")
	flags.StringVar(&o.certDir, "cert-dir", "/etc/courier/tls", "directory with the webhook's tls.crt and tls.key")
	flags.IntVar(&o.metricsPort, "metrics-port", 8080, "port of /metrics; 0 turns it off")
	flags.IntVar(&o.healthPort, "health-port", 8081, "port of /healthz and /readyz; 0 turns it off")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "let one replica at a time deliver")
	flags.IntVarP(&o.verbosity, "v", "v", 0, "how much to log: 0, or 1 for more")
	flags.StringVar(&o.logFormat, "log-format", "text", "text or json")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	return o, flags
}

// validate says what is wrong with the command line.
func (o *options) validate(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if namespace, name, ok := strings.Cut(o.config, "/"); !ok || namespace == "" || name == "" {
		return fmt.Errorf("--config %q is not namespace/name", o.config)
	}
	if o.jobs == "" {
		return errors.New("--jobs-namespace is empty")
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		return fmt.Errorf("--log-format %q is neither text nor json", o.logFormat)
	}
	if o.webhookPort == 0 {
		return errors.New("--webhook-port is 0")
	}
	for _, port := range []int{o.webhookPort, o.metricsPort, o.healthPort} {
		if port < 0 || port > 65535 {
			return fmt.Errorf("port %d does not exist", port)
		}
	}
	return nil
}

// where says where courier's objects are.
func (o *options) where() dispatcher.Where {
	namespace, name, _ := strings.Cut(o.config, "/")
	return dispatcher.Where{Config: client.ObjectKey{Namespace: namespace, Name: name}, Jobs: o.jobs}
}

// address is where a server listens; "0" is how controller-runtime says nowhere.
func (o *options) address(port int) string {
	if port == 0 {
		return "0"
	}
	return net.JoinHostPort(o.bindAddress, strconv.Itoa(port))
}
