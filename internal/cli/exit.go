package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Exit codes that code refers to by name. exits has the full table.
const (
	exitOK          = 0
	exitFailure     = 1
	exitNotAcquired = 75
	exitLost        = 76
)

// coded is an error with its own exit code.
type coded struct {
	code int
	error
}

// Unwrap gives the error.
func (c coded) Unwrap() error { return c.error }

// childExit is the exit code of a child process. It becomes the exit code of this program,
// without a message: the child has printed its own.
type childExit int

// Error implements error.
func (c childExit) Error() string { return fmt.Sprintf("the command ended with %d", int(c)) }

// exit is an exit code with its meaning and error kinds.
type exit struct {
	code    int
	meaning string
	kinds   []fault.Kind
}

// exits is the table of exit codes. It is append-only, because scripts rely on the codes.
func exits() []exit {
	return []exit{
		{exitOK, "success", nil},
		{exitFailure, "failure", []fault.Kind{fault.Internal, fault.Unauthentic, fault.Forbidden, fault.Unsupported}},
		{2, "invalid usage or input", []fault.Kind{fault.Invalid, fault.TooLarge, fault.Unprocessable}},
		{3, "not found", []fault.Kind{fault.NotFound, fault.Gone}},
		{4, "already exists, conflict, limit reached, or no space", []fault.Kind{fault.Exists, fault.Conflict, fault.LimitReached, fault.NoSpace}},
		{5, "timeout", []fault.Kind{fault.Timeout}},
		{69, "unavailable: no peer answers, or the peer is not ready, or has no group or no quorum", []fault.Kind{fault.Unavailable}}, // EX_UNAVAILABLE of sysexits.h
		{exitNotAcquired, "lock: others hold the lock; require: too few instances in time", nil},                                      // EX_TEMPFAIL
		{exitLost, "lock: the lock was lost while held", nil},
		{130, "interrupted", []fault.Kind{fault.Canceled}}, // 128 + SIGINT, the convention of shells
	}
}

// exitCodeOf returns the exit code of an error. A kind outside the table is a failure.
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

// report writes an error as one line, followed by an optional hint.
func report(stderr io.Writer, cmd *cobra.Command, err error) {
	fmt.Fprintf(stderr, "%s: %s\n", name, oneLine(err))
	if h := hint(cmd, err); h != "" {
		fmt.Fprintf(stderr, "hint: %s\n", h)
	}
}

// hint suggests a next step to the user, or is "".
func hint(cmd *cobra.Command, err error) string {
	remote := CallsPeer(cmd)
	switch kind := fault.KindOf(err); {
	case taken(err):
		return "another program listens there, such as another peer or Consul: set another address with --" + fault.FieldOf(err)
	case kind == fault.Invalid:
		return cmd.CommandPath() + " --help"
	case kind == fault.Unauthentic && remote:
		return "authenticate with --token-file, BLACKHOLE_AUTH_TOKEN, or --cert and --key"
	case kind == fault.Exists && cmd.CommandPath() == name+" offer register":
		return "use " + name + " offer update to replace an offer"
	case kind == fault.Timeout && remote:
		return "use --" + timeoutFlag + " to wait longer"
	case kind == fault.Unavailable && remote && strings.HasSuffix(err.Error(), httpListens):
		return "use the gRPC address of the peer, by default " + client.DefaultAddress
	case kind == fault.Unavailable && remote && !answered(err):
		return "is `" + name + " run` running? Set the address of the peer with --grpc or BLACKHOLE_GRPC"
	default:
		return ""
	}
}

// httpListens is the cause of a failed call at an address of HTTP.
const httpListens = "an HTTP server listens there"

// taken reports that an address of a peer is in use. libp2p gives the cause as text only.
func taken(err error) bool {
	return slices.Contains(listenFlags(), fault.FieldOf(err)) && strings.Contains(err.Error(), syscall.EADDRINUSE.Error())
}

// answered reports whether the error came from the peer: the client wraps the peer's fault
// in its own.
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

// oneLine renders an error as "field: message" in one line. Only internal errors, which a
// user cannot fix, show their operations.
func oneLine(err error) string {
	text := message(err)
	if fault.KindOf(err) == fault.Internal {
		text = err.Error()
	} else if field := fault.FieldOf(err); field != "" {
		text = field + ": " + strings.TrimPrefix(text, field+": ")
	}
	return clean(text)
}

// message is the text below the outermost faults. Unlike fault.Message it keeps the text
// that wraps an inner fault.
func message(err error) string {
	for {
		switch e := err.(type) {
		case *fault.Error:
			err = e.Err
		case interface{ Unwrap() []error }: // errors.Join, often of one
			if all := e.Unwrap(); len(all) == 1 {
				err = all[0]
				continue
			}
			return err.Error()
		default:
			return err.Error()
		}
	}
}

// clean makes text safe for a terminal line, because parts of it come from strangers: control
// characters could move the cursor, and format characters could reorder the text.
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

// flagError converts an error of the flag parser into a fault that names the flag.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return fault.Invalidf("", nil, "%w%s", err, meantFlag(cmd, err))
	}
	flag, value := "--"+bad.GetFlag().Name, bad.GetValue()
	if cause := bad.Unwrap(); fault.KindOf(cause) == fault.Invalid { // from a flag type of this package
		return fault.Invalidf(flag, value, "%s", fault.Message(cause))
	}
	return fault.Invalidf(flag, value, "must be a %s, not %q", typeName(bad.GetFlag().Value.Type()), value)
}

// typeName describes a flag type of pflag to users.
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

// fieldNames maps the fields of errors to the flags and arguments that set them. "" means the
// flag of the same name.
type fieldNames map[string]string

// rename replaces the field of err by its flag or argument. Errors from the peer name fields
// too, because the peer may have tighter limits.
func (n fieldNames) rename(err error) error {
	if field := fault.FieldOf(err); n.of(field) != field {
		return renameField(err, n.of(field))
	}
	return err
}

// exactly is rename for whole fields, such as guards[0].key.
func (n fieldNames) exactly(err error) error {
	if name, ok := n[fault.FieldOf(err)]; ok {
		return renameField(err, name)
	}
	return err
}

// of returns the flag or argument for a field, or the field for others. A renamed field may
// have parts: attributes.tier.
func (n fieldNames) of(field string) string {
	top, _, _ := strings.Cut(field, "[") // countries[0]
	name, ok := n[top]
	if part, _, dotted := strings.Cut(top, "."); !ok && dotted {
		name = n[part]
		ok = name != ""
	}
	switch {
	case !ok:
		return field
	case name == "":
		return "--" + strings.ReplaceAll(top, "_", "-")
	}
	return name
}

// renameField replaces the field of err. An error without a field stays the same.
func renameField(err error, name string) error {
	if fault.FieldOf(err) == "" {
		return err
	}
	return &fault.Error{Kind: fault.KindOf(err), Field: name, Value: fault.ValueOf(err), Err: errors.New(fault.Message(err))}
}
