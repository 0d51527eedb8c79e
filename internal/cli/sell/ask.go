package sell

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// asker sets the flags of a command that the user has not given.
type asker struct {
	con *term.Console
	cmd *cobra.Command
	in  *bufio.Scanner
}

// need sets a flag that was not given to what was found out, or else to the user's answer. Without a terminal it fails
// with the name of the flag.
func (a *asker) need(ctx context.Context, flag, question, found string) error {
	f := a.cmd.Flags().Lookup(flag)
	if f.Changed {
		return nil
	}
	if found != "" {
		return a.cmd.Flags().Set(flag, found)
	}
	if !a.con.Terminal.Input {
		return fault.Invalidf("--"+flag, nil, "is required without a terminal: %s", f.Usage)
	}
	for {
		text, ended, err := a.line(ctx, question+": ")
		switch {
		case err != nil:
			return err
		case ended:
			return fault.Invalidf("--"+flag, nil, "has no answer: the input has ended")
		case text == "":
			continue
		}
		err = a.cmd.Flags().Set(flag, text)
		if err == nil {
			return nil
		}
		a.con.Say("%s", exit.OneLine(command.FlagError(a.cmd, err)))
	}
}

// agreed asks whether to go on. An empty answer is yes, the end of the input no.
func (a *asker) agreed(ctx context.Context, question string) (bool, error) {
	text, ended, err := a.line(ctx, question+" [Y/n] ")
	text = strings.ToLower(text)
	return err == nil && !ended && (text == "" || text == "y" || text == "yes"), err
}

// line reads one answer. A reader of the terminal cannot be interrupted, so that one goes on until the program
// ends, which an ended ctx brings about.
func (a *asker) line(ctx context.Context, question string) (text string, ended bool, err error) {
	fmt.Fprint(a.con.Stderr, question)
	got := make(chan string, 1)
	go func() {
		defer close(got)
		if a.in.Scan() {
			got <- strings.TrimSpace(a.in.Text())
		}
	}()
	select {
	case <-ctx.Done():
		return "", false, fault.Wrap("", ctx.Err())
	case text, ok := <-got:
		return text, !ok, nil
	}
}

// checked is the value of a flag that is checked as soon as it is set, so that a wrong answer is asked again.
type checked struct {
	text  *string
	check func(text string) error
	name  string // of the type in help texts
}

// String implements pflag.Value.
func (c checked) String() string {
	if c.text == nil {
		return ""
	}
	return *c.text
}

// Type implements pflag.Value.
func (c checked) Type() string { return c.name }

// Set implements pflag.Value.
func (c checked) Set(text string) error {
	err := c.check(text)
	if err == nil {
		*c.text = text
	}
	return err
}
