package network

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelet-ca-courier/dispatcher"
)

// connected is courier at work along a wire.
type connected struct {
	*plane
	*wire
	*keeper
}

// fault is something that breaks the connection in the middle of rotations.
type fault struct {
	name  string
	while func(t *testing.T, c connected)
}

func TestNothingIsLostWhenTheAPIServerIsSlowOrAway(t *testing.T) {
	bear(t, fault{"every answer takes seconds", slowness}, fault{"it is away for longer than the lease is good", outage})
}

func TestNothingIsLostWhenConnectionsBreakOrRequestsAreRefused(t *testing.T) {
	bear(t, fault{"connections are reset again and again", resets}, fault{"open connections go silent", silence},
		fault{"requests are refused for their rate", refusals})
}

// bear has courier go through the faults, one after another.
func bear(t *testing.T, faults ...fault) {
	t.Parallel() // most of the time is spent waiting
	p := startPlane(t, numbered(20)...)
	w := lay(t, p.Lab)
	c := connected{p, w, p.keep(t, program(t, "courier"), w.kubeconfig)}
	c.settled(t, c.rotate(t))
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			e, length, restarts := c.begin(t), c.length(), c.restarts()
			c.forgive()
			begin := time.Now()
			defer func() {
				t.Logf("%.0f s, %d restarts; courier said:\n%s", time.Since(begin).Seconds(), c.restarts()-restarts, brief(c.said(length)))
			}()
			fault.while(t, c)
			e.end(t)
		})
	}
}

// resetFor is how long connections are reset at a time. A lease lasts longer.
const resetFor = 500 * time.Millisecond

// resets breaks all connections several times in each of two rotations.
func resets(t *testing.T, c connected) {
	before := c.restarts()
	for range 2 {
		hash := c.rotate(t)
		for range 3 {
			have := c.created(hash)
			end := c.reset(t)
			<-time.After(resetFor)
			end()
			eventually(t, "the rotation goes on", func(context.Context) error {
				if now := c.jobs.created(hash); now == have && now < len(c.nodes) {
					return fmt.Errorf("%d of %d Jobs", now, len(c.nodes))
				}
				return nil
			})
		}
		c.plane.settled(t, hash)
	}
	if now := c.restarts(); now != before {
		t.Errorf("courier was restarted %d times for connections that were reset", now-before)
	}
}

// created counts the Jobs of a bundle that were made.
func (c connected) created(hash string) int { return c.jobs.created(hash) }

// silence makes the connections that are open go silent and waits until courier has delivered along another.
func silence(t *testing.T, c connected) {
	before := c.restarts()
	c.underway(t, c.rotate(t))
	end := c.wire.silence(t)
	defer end()
	c.settled(t, c.rotate(t))
	if now := c.restarts(); now != before {
		t.Errorf("courier was restarted %d times for connections that went silent", now-before)
	}
}

// slowness delays every request and every answer.
func slowness(t *testing.T, c connected) {
	before, length := c.restarts(), c.length()
	end := c.slow(t, time.Second)
	begin := time.Now()
	first := c.rotate(t)
	c.underway(t, first)
	t.Log("kubectl courier status: ", c.status(t))
	c.settled(t, first)
	t.Logf("a rotation took %.0f s with answers of 2 s", time.Since(begin).Seconds())
	end()
	end = c.slow(t, mostLatency)
	hash := c.rotate(t)
	c.renewals(t, 3)
	end()
	c.settled(t, hash)
	if now := c.restarts(); now != before {
		t.Errorf("courier was restarted %d times by an API server that was slow", now-before)
	}
	if err := c.mentions(length, "the API server is slow"); err != nil {
		t.Error(err)
	}
}

// mostLatency is what courier bears in each direction.
const mostLatency = 4 * time.Second

// renewals waits until the lease was renewed so often.
func (c connected) renewals(t *testing.T, count int) {
	t.Helper()
	last := ""
	eventually(t, "the lease is renewed", func(ctx context.Context) error {
		lease, err := c.client.CoordinationV1().Leases(dispatcher.ManagerNamespace).Get(ctx, "courier", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now := lease.Spec.RenewTime.String(); now != last {
			last = now
			count--
		}
		if count > 0 {
			return fmt.Errorf("%d renewals to go", count)
		}
		return nil
	})
}

// outage cuts courier off until it has given up leading and could not start again.
func outage(t *testing.T, c connected) {
	before, length := c.restarts(), c.length()
	c.underway(t, c.rotate(t))
	c.cut()
	hash := c.rotate(t)
	eventually(t, "courier gives up leading, and cannot start again", func(context.Context) error {
		if ends := c.restarts() - before; ends < 2 {
			return fmt.Errorf("it ended %d times", ends)
		}
		return nil
	})
	t.Log("kubectl courier status: ", c.status(t))
	for _, text := range []string{"leader election lost", "for longer than the lease is good", "does not answer", "check the server's address"} {
		if err := c.mentions(length, text); err != nil {
			t.Error(err)
		}
	}
	c.mend(t)
	begin := time.Now()
	c.settled(t, hash)
	t.Logf("delivered %.0f s after the end", time.Since(begin).Seconds())
}

// brief returns the lines of a log that differ in more than their times, with how often each was there.
func brief(log string) string {
	var order []string
	count := map[string]int{}
	for line := range strings.Lines(log) {
		if _, rest, found := strings.Cut(line, " level="); found {
			line = "level=" + rest
		}
		if len(line) > 300 {
			line = line[:300] + "…\n"
		}
		if count[line]++; count[line] == 1 {
			order = append(order, line)
		}
	}
	var out strings.Builder
	for _, line := range order {
		fmt.Fprintf(&out, "%4d× %s", count[line], line)
	}
	return out.String()
}
