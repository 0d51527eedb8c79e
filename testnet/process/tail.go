package process

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
)

const (
	tailLines = 30
	tailLine  = 4 << 10 // kept bytes of a line
)

// tail keeps the last lines, and forwards all lines with the name in front.
type tail struct {
	name string
	show io.Writer // may be nil

	mu      sync.Mutex // guards all below
	lines   []string
	partial []byte // an unfinished line, at most tailLine bytes
}

func newTail(name string, show io.Writer) *tail { return &tail{name: name, show: show} }

// Write implements io.Writer. It never fails: an unread log must not stop a peer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		room := max(tailLine-len(t.partial), 0)
		t.partial = append(t.partial, line[:min(len(line), room)]...)
		if whole {
			t.take(string(t.partial))
			t.partial = t.partial[:0]
		}
		rest = after
	}
	return len(p), nil
}

func (t *tail) take(line string) {
	if len(t.lines) == tailLines {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, line)
	if t.show != nil {
		fmt.Fprintf(t.show, "%s | %s\n", t.name, line)
	}
}

// String returns the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(append(t.lines[:len(t.lines):len(t.lines)], string(t.partial)), "\n")
}
