package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// isTerminal says whether a person looks at what is written there.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colours marks text for a terminal; the zero value leaves it as it is.
type colours struct {
	on bool
}

// colours are on where a person reads a table on a terminal and has not asked for none (https://no-color.org).
func (c cli) colours(o *outputFlags) colours {
	return colours{on: o.human() && isTerminal(c.streams.Out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func (c colours) good(s string) string { return c.paint("32", s) }
func (c colours) bad(s string) string  { return c.paint("31", s) }
func (c colours) warn(s string) string { return c.paint("33", s) }

// paint wraps the text into an SGR sequence (ECMA-48, 8.3.117).
func (c colours) paint(code, s string) string {
	if !c.on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// progress draws a bar on a terminal's standard error, and nothing anywhere else, so that output stays clean in a pipe.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	label string
	done  int
	total int
	drawn int
}

// progress starts a bar.
func (c cli) progress(label string, total int) *progress {
	p := &progress{label: label, total: total, drawn: -1}
	if isTerminal(c.streams.ErrOut) {
		p.w = c.streams.ErrOut
	}
	p.draw()
	return p
}

// step counts one more done.
func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.draw()
}

// end takes the bar away.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K") // a bar that cannot be drawn is no reason to fail
	}
}

// draw draws the bar when the percentage has changed.
func (p *progress) draw() {
	if p.w == nil || p.total == 0 {
		return
	}
	percent := 100 * p.done / p.total
	if percent == p.drawn {
		return
	}
	p.drawn = percent
	_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s %s %d/%d", p.label, bar(p.done, p.total), p.done, p.total)
}

// barWidth is the length of a progress bar, short enough for any terminal.
const barWidth = 30

// bar returns a progress bar as text.
func bar(done, total int) string {
	filled := 0
	if total > 0 {
		filled = barWidth * done / total
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat(".", barWidth-filled) + "]"
}
