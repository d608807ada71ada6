package dispatcher

import (
	"net/http"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"kubelet-ca-courier/bundle"
)

// ServerClock tells the API server's time, by the dates of its answers; this machine's own until there was one.
//
// When a Job was made and when it ended is written by the API server and its controllers. Measured with the clock of another
// machine, a wait comes out wrong by as much as the two are apart: a day ahead, every node is due for another look the
// moment it was looked at, without end; a day behind, a node that failed is tried again after a day.
type ServerClock struct {
	local clock.PassiveClock

	mu    sync.Mutex
	ahead time.Duration // of the server
	apart bool          // by more than clocks may be; said already
}

var _ clock.PassiveClock = &ServerClock{}

// NewServerClock returns a clock that goes by the local one and follows the answers that pass through [ServerClock.Follow].
func NewServerClock(local clock.PassiveClock) *ServerClock { return &ServerClock{local: local} }

// Now is the API server's time.
func (c *ServerClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local.Now().Add(c.ahead)
}

// Since is the time that has passed on the API server's clock.
func (c *ServerClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Follow is a transport to the API server whose answers tell the time.
func (c *ServerClock) Follow(next http.RoundTripper) http.RoundTripper {
	return &follower{clock: c, next: next}
}

// follower is a transport whose answers tell the time.
type follower struct {
	clock *ServerClock
	next  http.RoundTripper
}

var _ utilnet.RoundTripperWrapper = &follower{}

// RoundTrip implements http.RoundTripper.
func (f *follower) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := f.clock.local.Now()
	response, err := f.next.RoundTrip(request)
	if err != nil {
		return response, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		f.clock.answered(date, sent, f.clock.local.Now())
	}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (f *follower) WrappedRoundTripper() http.RoundTripper { return f.next }

// answered takes in the date of an answer, which was written some time between the request and now and has lost its
// fraction of a second. What is known stays as long as it may be true, so that the clock does not waver.
func (c *ServerClock) answered(date, sent, now time.Time) {
	least, most := date.Sub(now), date.Add(time.Second).Sub(sent)
	c.mu.Lock()
	c.ahead = min(max(c.ahead, least), most)
	ahead := c.ahead
	apart := ahead.Abs() > bundle.ClockSkew
	changed := apart != c.apart
	c.apart = apart
	c.mu.Unlock()
	if !changed {
		return
	}
	message := "this machine's clock and the API server's agree again"
	if apart {
		message = "this machine's clock is wrong, or the API server's is; deliveries go by the API server's, the webhook by this machine's"
	}
	log.Log.Info(message, "apiServerAhead", ahead.Round(time.Second).String())
}
