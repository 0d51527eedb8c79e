// Package term writes what commands say: documents as tables, JSON, NDJSON or YAML, lines for people, and the line of
// progress. Standard output carries only documents. Text of strangers cannot control the terminal.
package term

import (
	"fmt"
	"io"
	"strings"
)

// Console is the input, output and environment of the program, shared by all commands.
type Console struct {
	Stdin     io.Reader
	Stdout    io.Writer
	Stderr    io.Writer
	Environ   []string
	Superuser bool // the user is root

	Terminal Terminal
	waiting  *progress // nil: nothing is shown
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

// Settle removes the progress line, because output follows.
func (c *Console) Settle() {
	if c.waiting != nil {
		c.waiting.stop()
	}
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
