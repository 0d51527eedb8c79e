package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/pkg/fault"
)

// The exit codes that code refers to by name; exits is the whole table.
const (
	exitOK          = 0
	exitFailure     = 1
	exitNotAcquired = 75
	exitLost        = 76
)

// coded is an error with an exit code of its own.
type coded struct {
	code int
	error
}

// Unwrap gives the error.
func (c coded) Unwrap() error { return c.error }

// childExit is how a command that was run for the user ended: its exit code is ours, and what
// there was to say it has said.
type childExit int

// Error implements error.
func (c childExit) Error() string { return fmt.Sprintf("the command ended with %d", int(c)) }

// exit is one code: what it means, and the kinds of error that end in it.
type exit struct {
	code    int
	meaning string
	kinds   []fault.Kind
}

// exits is the table of exit codes. Codes are append-only: scripts rely on them.
func exits() []exit {
	return []exit{
		{exitOK, "done", nil},
		{exitFailure, "failure", []fault.Kind{fault.Internal, fault.Unauthentic, fault.Forbidden, fault.Unsupported}},
		{2, "usage, or invalid input", []fault.Kind{fault.Invalid, fault.TooLarge, fault.Unprocessable}},
		{3, "not found", []fault.Kind{fault.NotFound, fault.Gone}},
		{4, "exists already, conflict, or a limit is reached", []fault.Kind{fault.Exists, fault.Conflict, fault.LimitReached}},
		{5, "timeout", []fault.Kind{fault.Timeout}},
		{69, "unavailable: no peer answers, it is not ready, or its group has no quorum or is none", []fault.Kind{fault.Unavailable}}, // EX_UNAVAILABLE of sysexits.h
		{exitNotAcquired, "lock: others hold it; require: too few instances in time", nil},                                            // EX_TEMPFAIL
		{exitLost, "lock: lost while it was held", nil},
		{130, "interrupted", []fault.Kind{fault.Canceled}}, // 128 + SIGINT, as shells have it
	}
}

// exitCodeOf gives the exit code of an error; kinds that the table lacks are failures.
func exitCodeOf(err error) int {
	var own coded
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &own):
		return own.code
	}
	for _, e := range exits() {
		if slices.Contains(e.kinds, fault.KindOf(err)) {
			return e.code
		}
	}
	return exitFailure
}

func exitHelp() string {
	var b strings.Builder
	for _, e := range exits() {
		fmt.Fprintf(&b, "  %3d  %s\n", e.code, e.meaning)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// report writes an error as one line, and under it what may help.
func (a App) report(cmd *cobra.Command, err error) {
	fmt.Fprintf(a.Stderr, "%s: %s\n", name, oneLine(err))
	if h := hint(cmd, err); h != "" {
		fmt.Fprintf(a.Stderr, "hint: %s\n", h)
	}
}

// hint is a next step for the user, or "".
func hint(cmd *cobra.Command, err error) string {
	remote := cmd.Flags().Lookup(timeoutFlag) != nil
	switch kind := fault.KindOf(err); {
	case kind == fault.Invalid:
		return cmd.CommandPath() + " --help"
	case kind == fault.Unauthentic && remote:
		return "--token-file or BLACKHOLE_AUTH_TOKEN says who you are, or --cert and --key"
	case kind == fault.Exists && cmd.CommandPath() == name+" register":
		return name + " update replaces a service"
	case kind == fault.Timeout && remote:
		return "--" + timeoutFlag + " allows more"
	case kind == fault.Unavailable && remote && !answered(err):
		return "is `" + name + " run` running? --grpc or BLACKHOLE_GRPC names the peer to ask"
	default:
		return ""
	}
}

// answered reports whether the error came from the peer: the client keeps the peer's own
// fault inside its own ones.
func answered(err error) bool {
	var outer, inner *fault.Error
	if !errors.As(err, &outer) || !errors.As(outer.Err, &inner) {
		return false
	}
	for next := inner; errors.As(inner.Err, &next); {
		inner = next
	}
	return !strings.HasPrefix(inner.Op, "client.")
}

// oneLine renders an error as "field: message" in one line. Operations show only where
// the error is not the user's to mend.
func oneLine(err error) string {
	text := message(err)
	if fault.KindOf(err) == fault.Internal {
		text = err.Error()
	} else if field := fault.FieldOf(err); field != "" {
		text = field + ": " + strings.TrimPrefix(text, field+": ")
	}
	return clean(text)
}

// message is the text under the faults that lead the chain. Unlike fault.Message it keeps
// what was added around a fault further in.
func message(err error) string {
	for {
		e, ok := err.(*fault.Error)
		if !ok {
			return err.Error()
		}
		err = e.Err
	}
}

// clean makes text safe for a terminal line: parts of it come from strangers. Control
// characters would move the cursor, format characters reorder what is read.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsGraphic(r):
			return unicode.ReplacementChar
		default:
			return r
		}
	}, s)
}

// flagError turns the flag parser's errors into faults that name the flag.
func flagError(_ *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return fault.Invalidf("", nil, "%w", err)
	}
	flag, value := "--"+bad.GetFlag().Name, bad.GetValue()
	if cause := bad.Unwrap(); fault.KindOf(cause) == fault.Invalid { // of a flag type of this package
		return fault.Invalidf(flag, value, "%s", fault.Message(cause))
	}
	return fault.Invalidf(flag, value, "must be a %s, not %q", typeName(bad.GetFlag().Value.Type()), value)
}

// typeName describes the flag types of pflag for people.
func typeName(t string) string {
	switch t {
	case "int":
		return "whole number"
	case "uint32", "uint64":
		return "whole number of at least 0, within range"
	case "float64":
		return "number"
	case "duration":
		return "duration (500ms, 10s, 2m)"
	default:
		return t
	}
}

// renameField gives err's field another name: that of the flag that set it.
func renameField(err error, rename func(field string) string) error {
	field := fault.FieldOf(err)
	if field == "" || rename(field) == field {
		return err
	}
	return &fault.Error{Kind: fault.KindOf(err), Field: rename(field), Value: fault.ValueOf(err), Err: errors.New(fault.Message(err))}
}
