package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kubelet-ca-courier/test/scale/lab"
)

// firstBackOff and lastBackOff are the kubelet's, from the second restart on (k8s.io/kubernetes pkg/kubelet,
// initialCrashLoopBackoff and MaxCrashLoopBackOff).
const (
	firstBackOff = 10 * time.Second
	lastBackOff  = 5 * time.Minute
)

// keeper runs courier, and starts it again whenever it ends, as a kubelet does.
type keeper struct {
	program   string
	arguments []string
	env       []string
	// log is the file with everything that courier prints.
	log string
	// health is the URL of its readiness check, metrics that of its metrics.
	health, metrics string
	// webhook is the port of its webhook.
	webhook string

	mu    sync.Mutex
	ends  []string
	wait  time.Duration
	stop  context.CancelFunc
	ended chan struct{}
}

// keep starts courier along the wire, or wherever the kubeconfig leads.
func (p *plane) keep(t *testing.T, program, kubeconfig string, env ...string) *keeper {
	t.Helper()
	ports := lab.FreePorts(t, 3)
	k := &keeper{
		program: program, env: env, webhook: ports[0], log: filepath.Join(p.Dir, fmt.Sprintf("courier-%s.log", ports[0])),
		metrics: "http://127.0.0.1:" + ports[1] + "/metrics", health: "http://127.0.0.1:" + ports[2] + "/readyz",
		ended: make(chan struct{}),
	}
	k.arguments = []string{"--kubeconfig=" + kubeconfig, "--cert-dir=" + p.certificates, "--bind-address=127.0.0.1",
		"--webhook-port=" + ports[0], "--metrics-port=" + ports[1], "--health-port=" + ports[2]}
	log, err := os.Create(k.log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	k.stop = cancel
	go k.run(ctx, log)
	t.Cleanup(func() {
		k.end()
		_ = log.Close()
		if t.Failed() {
			t.Logf("courier said:\n%s", k.said(0))
		}
	})
	return k
}

// end ends courier in good order.
func (k *keeper) end() {
	k.stop()
	<-k.ended
}

func (k *keeper) run(ctx context.Context, log *os.File) {
	defer close(k.ended)
	for {
		cmd := exec.CommandContext(ctx, k.program, k.arguments...)
		cmd.Env = append(os.Environ(), k.env...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = time.Minute
		err := cmd.Run()
		if ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(k.next(err)):
		}
	}
}

// next notes an end and returns how long to wait after it: not at all at first, then longer each time.
func (k *keeper) next(end error) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ends = append(k.ends, fmt.Sprint(end))
	wait := k.wait
	k.wait = min(max(2*wait, firstBackOff), lastBackOff)
	return wait
}

// forgive forgets the back-off, as a kubelet does after a while.
func (k *keeper) forgive() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wait = 0
}

// restarts is how often courier was started again.
func (k *keeper) restarts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.ends)
}

// length is that of the log by now.
func (k *keeper) length() int { return len(k.said(0)) }

// said is what courier has printed since the log had that length.
func (k *keeper) said(since int) string {
	text, err := os.ReadFile(k.log)
	if err != nil {
		return err.Error()
	}
	return string(text)[since:]
}

// refused is how many answers of the API server refused a request for its rate, by courier's own metrics.
func (k *keeper) refused(ctx context.Context) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.metrics, nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, match := range refusedSeries.FindAllSubmatch(text, -1) {
		value, err := strconv.Atoi(string(match[1]))
		if err != nil {
			return 0, err
		}
		count += value
	}
	return count, nil
}

var refusedSeries = regexp.MustCompile(`(?m)^rest_client_requests_total\{code="429".*\} (\d+)$`)

// mentions fails unless courier has printed the text since.
func (k *keeper) mentions(since int, text string) error {
	if !strings.Contains(k.said(since), text) {
		return errors.New("it has not said " + text)
	}
	return nil
}
