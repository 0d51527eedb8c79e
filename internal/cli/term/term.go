// Package term writes what commands say: documents as tables, JSON, NDJSON or YAML, lines for people, and the line of
// progress. Standard output carries only documents. Text of strangers cannot control the terminal.
package term

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// Console is the input, output and environment of the program, shared by all commands.
type Console struct {
	Stdin     io.Reader
	Stdout    io.Writer
	Stderr    io.Writer
	Environ   []string
	Superuser bool // the user is root

	Terminal Terminal
	Clock    func() time.Time // nil: that of the machine
	waiting  *progress        // nil: nothing is shown
}

// Screen describes standard output. Colours respect NO_COLOR (no-color.org).
func (c *Console) Screen() Screen {
	if c.Terminal.Size == nil {
		return Screen{}
	}
	columns, _ := c.Terminal.Size()
	term, _ := c.Env("TERM")
	off, _ := c.Env("NO_COLOR")
	return Screen{Columns: columns, colour: off == "" && term != "dumb"}
}

// Now returns the time, for the age of what a peer knows.
func (c *Console) Now() time.Time {
	if c.Clock == nil {
		return time.Now()
	}
	return c.Clock()
}

// Settle removes the progress line, because output follows.
func (c *Console) Settle() {
	if c.waiting != nil {
		c.waiting.stop()
	}
}

// Quit closes typed when the user types q, or Ctrl-C, which is a key like others until restore. The goroutine that
// reads keys goes on until the process ends, or its input.
func (c *Console) Quit() (typed <-chan struct{}, restore func()) {
	quit := make(chan struct{})
	if c.Terminal.Raw == nil {
		return quit, func() {}
	}
	restore = c.Terminal.Raw()
	go func() {
		const interrupt = 3 // ASCII
		key := make([]byte, 1)
		for {
			n, err := c.Stdin.Read(key)
			switch {
			case err != nil:
				return
			case n > 0 && (key[0] == 'q' || key[0] == 'Q' || key[0] == interrupt):
				close(quit)
				return
			}
		}
	}()
	return quit, restore
}

// Env returns the last value of an environment variable, as a shell does.
func (c *Console) Env(variable string) (string, bool) {
	value, found := "", false
	for _, entry := range c.Environ {
		if v, ok := strings.CutPrefix(entry, variable+"="); ok {
			value, found = v, true
		}
	}
	return value, found
}

// Say writes a message for the user to standard error.
func (c *Console) Say(format string, args ...any) {
	c.Settle()
	fmt.Fprintln(c.Stderr, Clean(fmt.Sprintf(format, args...)))
}

// showAfter is the time that a call takes in silence. A line that comes and goes at once is no help.
const showAfter = time.Second

// progress is a line at a terminal while a call takes long. The line disappears before other output.
type progress struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// Wait shows what the program waits for, and since when. limit 0 is no limit.
func (c *Console) Wait(ctx context.Context, what string, limit time.Duration) (stop func()) {
	if !c.Terminal.Errors {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &progress{cancel: cancel, ended: make(chan struct{})}
	c.waiting = p
	go p.run(ctx, c.Stderr, what, limit)
	return p.stop
}

func (p *progress) run(ctx context.Context, out io.Writer, what string, limit time.Duration) {
	defer close(p.ended)
	begun, tick, shown := time.Now(), time.NewTicker(showAfter), false
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			if shown {
				_, _ = io.WriteString(out, "\r\x1b[K") // ECMA-48: erase the line; a terminal that is gone needs no cleaning
			}
			return
		case <-tick.C:
		}
		text := fmt.Sprintf("%s: %s", what, time.Since(begun).Round(time.Second))
		if limit > 0 {
			text += " of at most " + limit.String()
		}
		_, _ = io.WriteString(out, "\r\x1b[K"+Clean(text))
		shown = true
	}
}

// stop ends the line and waits until it is gone.
func (p *progress) stop() {
	p.cancel()
	<-p.ended
}
