package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/pkg/fault"
)

// console is the input, output and environment of the program, shared by all commands.
type console struct {
	stdin     io.Reader
	stdout    io.Writer
	stderr    io.Writer
	environ   []string
	superuser bool // the user is root

	terminal Terminal
	waiting  *progress // nil: nothing is shown
}

// screen describes standard output. Colours respect NO_COLOR (no-color.org).
func (c *console) screen() screen {
	if c.terminal.Size == nil {
		return screen{}
	}
	columns, _ := c.terminal.Size()
	term, _ := c.env("TERM")
	off, _ := c.env("NO_COLOR")
	return screen{columns: columns, colour: off == "" && term != "dumb"}
}

// settle removes the progress line, because output follows.
func (c *console) settle() {
	if c.waiting != nil {
		c.waiting.stop()
	}
}

// env returns the last value of an environment variable, as a shell does.
func (c *console) env(variable string) (string, bool) {
	value, found := "", false
	for _, entry := range c.environ {
		if v, ok := strings.CutPrefix(entry, variable+"="); ok {
			value, found = v, true
		}
	}
	return value, found
}

// say writes a message for the user to standard error.
func (c *console) say(format string, args ...any) {
	c.settle()
	fmt.Fprintln(c.stderr, clean(fmt.Sprintf(format, args...)))
}

// readFile reads a file, or standard input for "-". Errors name the flag. A file of more
// than limit bytes is refused.
func (c *console) readFile(flag, path string, limit int) ([]byte, error) {
	in := c.stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.Invalidf(flag, path, "%w", err)
		}
		defer func() { _ = f.Close() }() // only read
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, int64(limit)+1))
	if err != nil {
		return nil, fault.Invalidf(flag, path, "%w", err)
	}
	if len(data) > limit {
		return nil, fault.New("", fault.TooLarge, "%s has more than %d bytes", path, limit)
	}
	return data, nil
}

// outputFlag adds -o.
func outputFlag(cmd *cobra.Command, f *format) {
	*f = formatTable
	cmd.Flags().VarP(f, "output", "o", "table, json, ndjson or yaml")
	complete(cmd, "output", formats()...)
}

// complete offers the shell the values of a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	completeBy(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func completeBy(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic("cli: completion of an unknown flag: " + flag) // impossible: the caller has just added the flag
	}
}

// bounded limits ctx to a timeout. Zero means no limit.
func bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}
