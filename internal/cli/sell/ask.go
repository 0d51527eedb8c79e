package sell

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// asker sets the flags of a command that the user has not given.
type asker struct {
	con     *term.Console
	cmd     *cobra.Command
	in      *bufio.Scanner
	missing []string // required flags, where there is no terminal to ask at
}

// need sets a flag that was not given to what was found out, or else to the answer to its help text. Without a terminal it
// notes that the flag is missing: see lacks.
func (a *asker) need(ctx context.Context, flag, found string) error {
	f := a.cmd.Flags().Lookup(flag)
	if f.Changed {
		return nil
	}
	if found != "" {
		return a.cmd.Flags().Set(flag, found)
	}
	if !a.con.Terminal.Input {
		a.missing = append(a.missing, "--"+flag)
		return nil
	}
	question, _, _ := strings.Cut(f.Usage, " (default")
	for {
		text, ended, err := a.line(ctx, strings.ToUpper(question[:1])+question[1:]+": ")
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

// lacks is the error about the missing flags, of all at once.
func (a *asker) lacks() error {
	switch len(a.missing) {
	case 0:
		return nil
	case 1:
		usage := a.cmd.Flags().Lookup(strings.TrimPrefix(a.missing[0], "--")).Usage
		return fault.Invalidf(a.missing[0], nil, "is required without a terminal: %s", strings.TrimSuffix(usage, " (required without a terminal)"))
	}
	all := strings.Replace(strings.Join(a.missing, ", "), "--endpoint", "--endpoint URL or --serve HOST:PORT", 1)
	return fault.Invalidf(all, nil, "are required without a terminal")
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

// link is the type of --endpoint: a URL with a host. HOST:PORT of this machine or its network is that of --serve.
type link struct {
	text  string
	url   *url.URL
	serve *string
}

// String implements pflag.Value.
func (l *link) String() string { return l.text }

// Type implements pflag.Value.
func (*link) Type() string { return "URL" }

// Set implements pflag.Value.
func (l *link) Set(text string) error {
	if host, _, err := net.SplitHostPort(text); err == nil {
		if ip := net.ParseIP(host); host == "localhost" || ip.IsLoopback() || ip.IsPrivate() {
			*l.serve = text
			return nil
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Hostname() == "" {
		return fault.Invalidf("", text, "must be a URL with a host: https://gpu.example.com/v1; "+
			"or HOST:PORT of a local service, as with --serve")
	}
	l.text, l.url = text, u
	return nil
}
