package binaries

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress shows what is being done and how far it is: on a terminal one line that changes, elsewhere a line now and
// then, so that a log stays readable. A task that ends within a second shows nothing.
type Progress struct {
	out      io.Writer
	terminal bool
	every    time.Duration
}

// NewProgress returns a Progress that writes to out.
func NewProgress(out io.Writer, terminal bool) *Progress {
	every := 15 * time.Second
	if terminal {
		every = 200 * time.Millisecond
	}
	return &Progress{out: out, terminal: terminal, every: every}
}

// Say prints a line.
func (p *Progress) Say(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

// Task is something that takes a while.
type Task struct {
	progress *Progress
	what     string
	started  time.Time
	stop     chan struct{}
	stopped  sync.WaitGroup

	mu     sync.Mutex
	detail string
}

// Start begins to show a task.
func (p *Progress) Start(what string) *Task {
	t := &Task{progress: p, what: what, started: time.Now(), stop: make(chan struct{})}
	t.stopped.Go(t.show)
	return t
}

// Update says how far the task is.
func (t *Task) Update(detail string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detail = detail
}

// Done ends the task's display.
func (t *Task) Done() {
	close(t.stop)
	t.stopped.Wait()
}

func (t *Task) show() {
	shown := false
	next := time.NewTimer(time.Second)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			shown = true
			next.Reset(t.progress.every)
			t.mu.Lock()
			t.print(t.detail)
			t.mu.Unlock()
		case <-t.stop:
			if shown {
				t.print("done")
				if t.progress.terminal {
					fmt.Fprintln(t.progress.out)
				}
			}
			return
		}
	}
}

// print writes one state of the task; on a terminal over the one before, cut to the width that every terminal has.
func (t *Task) print(detail string) {
	line := fmt.Sprintf("%s: %s (%s)", t.what, detail, time.Since(t.started).Round(time.Second))
	if !t.progress.terminal {
		fmt.Fprintln(t.progress.out, line)
		return
	}
	if len(line) > 119 {
		line = line[:116] + "..."
	}
	fmt.Fprintf(t.progress.out, "\r\x1b[K%s", line)
}
