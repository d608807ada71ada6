package dispatcher

import (
	"errors"
	"net/http"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// answering is a transport that takes its time and answers with a date.
type answering struct {
	local *clocktesting.FakePassiveClock
	takes time.Duration
	date  string
	err   error
}

func (a *answering) RoundTrip(*http.Request) (*http.Response, error) {
	a.local.SetTime(a.local.Now().Add(a.takes))
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {a.date}}, Body: http.NoBody}, nil
}

func TestTheServerClockGoesByTheAnswersOfTheAPIServer(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name  string
		ahead time.Duration // of the API server
		takes time.Duration // an answer
		slack time.Duration // that may remain
	}{
		{"the clocks agree", 0, 0, 0},
		{"they agree, and the answer is slow", 0, 20 * time.Second, 0},
		{"they differ by less than a date can tell", 300 * time.Millisecond, time.Millisecond, time.Second},
		{"this machine is a day behind", 24 * time.Hour, 2 * time.Second, 2 * time.Second},
		{"this machine is a day ahead", -24 * time.Hour, 2 * time.Second, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			local := clocktesting.NewFakePassiveClock(begin)
			server := NewServerClock(local)
			wire := &answering{local: local, takes: test.takes}
			transport := server.Follow(wire)
			for range 3 {
				// The API server writes the date half-way.
				wire.date = local.Now().Add(test.ahead + test.takes/2).UTC().Format(http.TimeFormat)
				response, err := transport.RoundTrip(&http.Request{})
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				if off := server.Now().Sub(local.Now().Add(test.ahead)).Abs(); off > test.slack {
					t.Errorf("the clock is off by %s, want at most %s", off, test.slack)
				}
				local.SetTime(local.Now().Add(1700 * time.Millisecond))
			}
		})
	}
}

// ask sends a request of which nothing but the answer's date matters.
func ask(transport http.RoundTripper) error {
	response, err := transport.RoundTrip(&http.Request{})
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func TestTheServerClockKeepsWhatItKnowsWithoutADate(t *testing.T) {
	local := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	server := NewServerClock(local)
	wire := &answering{local: local, date: local.Now().Add(time.Hour).Format(http.TimeFormat)}
	transport := server.Follow(wire)
	if err := ask(transport); err != nil {
		t.Fatal(err)
	}
	want := server.Now()
	if want.Sub(local.Now()) != time.Hour {
		t.Fatalf("the API server is taken to be %s ahead, want an hour", want.Sub(local.Now()))
	}
	for _, wire.date = range []string{"", "yesterday"} {
		if err := ask(transport); err != nil {
			t.Fatal(err)
		}
	}
	wire.err = errors.New("connection refused")
	if err := ask(transport); !errors.Is(err, wire.err) {
		t.Errorf("the transport's error is %v", err)
	}
	if now := server.Now(); !now.Equal(want) {
		t.Errorf("the clock went from %s to %s without a date", want, now)
	}
	if passed := server.Since(want.Add(-time.Minute)); passed != time.Minute {
		t.Errorf("%s since a minute ago", passed)
	}
}
