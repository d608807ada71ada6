package main

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
)

// replying answers after a while with a code.
type replying struct {
	after time.Duration
	code  int
}

func (r *replying) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(r.after)
	return &http.Response{StatusCode: r.code, Body: http.NoBody}, nil
}

func TestSlowAndRefusedAnswersAreToldOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		server := &replying{}
		a := newAnswers(server, funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
		ask := func(after time.Duration, code int) {
			server.after, server.code = after, code
			response, err := a.RoundTrip(&http.Request{})
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
		}
		ask(time.Second, http.StatusOK)
		ask(0, http.StatusConflict)
		if len(lines) != 0 {
			t.Errorf("ordinary answers are told: %q", lines)
		}
		for range 3 {
			ask(0, http.StatusTooManyRequests)
			ask(slowAnswer, http.StatusOK)
		}
		if len(lines) != 2 || !strings.Contains(lines[0], "refuses requests") || !strings.Contains(lines[1], "is slow") {
			t.Fatalf("%q, want a line about the first of each kind", lines)
		}
		time.Sleep(toldEvery)
		ask(3*slowAnswer, http.StatusTooManyRequests)
		if len(lines) != 4 || !strings.Contains(lines[2], `"answers"=3 "longest"="6s"`) ||
			!strings.Contains(lines[3], `"answers"=3 "longest"="6s"`) {
			t.Errorf("%q, want a second line of each kind, about all since", lines)
		}
	})
}
