package main

import (
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// How long courier bears an API server that is slow or away. Deliveries have days; losing the lease costs a restart, and the
// gate on that replica with it. A request for the lease may take half of renewDeadline (sigs.k8s.io/controller-runtime
// pkg/leaderelection). After a leader that died another one leads after leaseDuration.
const (
	leaseDuration = 35 * time.Second
	renewDeadline = 25 * time.Second
	retryPeriod   = 5 * time.Second
)

// expectAnswers has a connection given up on which nothing comes for ten seconds and a ping is not answered for ten more: in
// time for the lease to be renewed along another one. client-go's own limits, 30 and 15, are not
// (k8s.io/apimachinery/pkg/util/net, which reads these variables). What is set in the environment goes first.
func expectAnswers() error {
	for _, name := range []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"} {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, "10"); err != nil {
			return err
		}
	}
	return nil
}

const (
	// slowAnswer is from when on an answer is slow. Watches and lists begin to answer at once, too.
	slowAnswer = 2 * time.Second
	// toldEvery is how often at most a log line says how the API server answers.
	toldEvery = time.Minute
)

// answers logs that the API server is slow, or refuses requests for their rate: client-go waits and asks again without a
// word.
type answers struct {
	next          http.RoundTripper
	slow, refused tally
}

// newAnswers returns a transport that logs how the next one's requests are answered.
func newAnswers(next http.RoundTripper, logger logr.Logger) *answers {
	return &answers{
		next:    next,
		slow:    tally{logger: logger, message: "the API server is slow"},
		refused: tally{logger: logger, message: "the API server refuses requests for their rate; they are made again when it says so"},
	}
}

var _ utilnet.RoundTripperWrapper = &answers{}

// RoundTrip implements http.RoundTripper.
func (a *answers) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := time.Now()
	response, err := a.next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	took := time.Since(sent)
	if took >= slowAnswer {
		a.slow.add(took)
	}
	if response.StatusCode == http.StatusTooManyRequests {
		a.refused.add(took)
	}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (a *answers) WrappedRoundTripper() http.RoundTripper { return a.next }

// tally counts answers of one kind, and says once in a while how many there were.
type tally struct {
	logger  logr.Logger
	message string

	mu      sync.Mutex
	told    time.Time
	count   int
	longest time.Duration
}

func (t *tally) add(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count++
	t.longest = max(t.longest, took)
	if time.Since(t.told) < toldEvery {
		return
	}
	t.logger.Info(t.message, "answers", t.count, "longest", t.longest.Round(100*time.Millisecond).String())
	t.told, t.count, t.longest = time.Now(), 0, 0
}
