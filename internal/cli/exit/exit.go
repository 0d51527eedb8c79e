// Package exit has the exit codes of the program, and the texts of errors for its users.
package exit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Exit codes that code refers to by name. exits has the full table.
const (
	OK          = 0
	Failure     = 1
	NotAcquired = 75
	Lost        = 76
)

// coded is an error with its own exit code.
type coded struct {
	code int
	error
}

// With gives an error its own exit code.
func With(code int, err error) error { return coded{code, err} }

// Unwrap gives the error.
func (c coded) Unwrap() error { return c.error }

// Child is the exit code of a child process. It becomes the exit code of this program,
// without a message: the child has printed its own.
type Child int

// Error implements error.
func (c Child) Error() string { return fmt.Sprintf("the command ended with %d", int(c)) }

// Signal is a signal that ended the work of the program, the cause of its context.
type Signal syscall.Signal

// Error implements error.
func (s Signal) Error() string {
	if syscall.Signal(s) == syscall.SIGINT {
		return "interrupted"
	}
	return syscall.Signal(s).String()
}

// Is makes it the end of a context.
func (s Signal) Is(target error) bool { return target == context.Canceled }

// Interrupted is the error of work that the end of ctx ended. Supervisors read 130 as Ctrl-C, so SIGTERM has its own code.
func Interrupted(ctx context.Context) error {
	by := Signal(syscall.SIGINT)
	errors.As(context.Cause(ctx), &by)
	return With(128+int(by), fault.New("", fault.Canceled, "%s", by.Error()))
}

// exit is an exit code with its meaning and error kinds.
type exit struct {
	code    int
	meaning string
	kinds   []fault.Kind
}

// exits is the table of exit codes. It is append-only, because scripts rely on the codes.
func exits() []exit {
	return []exit{
		{OK, "success", nil},
		{Failure, "failure", []fault.Kind{fault.Internal, fault.Unauthentic, fault.Forbidden, fault.Unsupported}},
		{2, "invalid usage or input", []fault.Kind{fault.Invalid, fault.TooLarge, fault.Unprocessable}},
		{3, "not found", []fault.Kind{fault.NotFound, fault.Gone}},
		{4, "already exists, conflict, limit reached, or a pool without a place", []fault.Kind{fault.Exists, fault.Conflict, fault.LimitReached, fault.PoolExhausted}},
		{5, "timeout", []fault.Kind{fault.Timeout}},
		{6, "payment required", []fault.Kind{fault.PaymentRequired}},
		{69, "unavailable: no peer answers, or the peer is not ready, or has no group or no quorum", []fault.Kind{fault.Unavailable}}, // EX_UNAVAILABLE of sysexits.h
		{NotAcquired, "lock: others hold the lock; require: too few instances in time", nil},                                          // EX_TEMPFAIL
		{Lost, "lock: the lock was lost while held", nil},
		{130, "interrupted", []fault.Kind{fault.Canceled}}, // 128 + SIGINT, the convention of shells
		{143, "ended by SIGTERM", nil},
	}
}

// CodeOf returns the exit code of an error. A kind outside the table is a failure.
func CodeOf(err error) int {
	var own coded
	switch {
	case err == nil:
		return OK
	case errors.As(err, &own):
		return own.code
	}
	for _, e := range exits() {
		if slices.Contains(e.kinds, fault.KindOf(err)) {
			return e.code
		}
	}
	return Failure
}

// Help is the table of exit codes for people.
func Help() string {
	var b strings.Builder
	for _, e := range exits() {
		fmt.Fprintf(&b, "  %3d  %s\n", e.code, e.meaning)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Answer is an error in the form of a peer's answer, for what this program finds out about a peer that answers: see Answered.
func Answer(kind fault.Kind, format string, args ...any) error {
	return fault.As("", kind, fault.New("", kind, format, args...))
}

// Answered reports whether the error came from the peer: the client wraps the peer's fault
// in its own.
func Answered(err error) bool {
	var outer, inner *fault.Error
	if !errors.As(err, &outer) || !errors.As(outer.Err, &inner) {
		return false
	}
	for next := inner; errors.As(inner.Err, &next); {
		inner = next
	}
	return !strings.HasPrefix(inner.Op, "client.")
}

// OneLine renders an error as "field: message" in one line. Only internal errors, which a
// user cannot fix, show their operations.
func OneLine(err error) string {
	text := Message(err)
	if fault.KindOf(err) == fault.Internal && fault.ProblemOf(err).Remedy == "" {
		text = err.Error()
	} else if field := fault.FieldOf(err); field != "" {
		text = field + ": " + strings.TrimPrefix(text, field+": ")
	}
	return term.Clean(text)
}

// Message is the text below the outermost faults. Unlike fault.Message it keeps the text
// that wraps an inner fault.
func Message(err error) string {
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

// Fields maps the fields of errors to the flags and arguments that set them. "" means the
// flag of the same name.
type Fields map[string]string

// Rename replaces the field of err by its flag or argument. Errors from the peer name fields
// too, because the peer may have tighter limits.
func (n Fields) Rename(err error) error {
	if field := fault.FieldOf(err); n.Of(field) != field {
		return Rename(err, n.Of(field))
	}
	return err
}

// Answer is Rename for an error of the peer, which stays recognisable as its answer: see Answered.
func (n Fields) Answer(err error) error {
	named := n.Rename(err)
	if named == err {
		return err
	}
	return fault.As("", fault.KindOf(named), named)
}

// Exactly is rename for whole fields, such as guards[0].key.
func (n Fields) Exactly(err error) error {
	if name, ok := n[fault.FieldOf(err)]; ok {
		return Rename(err, name)
	}
	return err
}

// Of returns the flag or argument for a field, or the field for others. A renamed field may
// have parts: attributes.tier.
func (n Fields) Of(field string) string {
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

// Rename replaces the field of err. An error without a field stays the same.
func Rename(err error, name string) error {
	if fault.FieldOf(err) == "" {
		return err
	}
	return &fault.Error{Kind: fault.KindOf(err), Field: name, Value: fault.ValueOf(err), Err: errors.New(fault.Message(err))}
}

// Cause is the cause of a failed connection without the ports, which differ each time.
func Cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Hopeless reports whether the next call of the same peer would fail in the same way.
func Hopeless(err error) bool {
	switch fault.KindOf(err) {
	case fault.Timeout, fault.Canceled, fault.Unavailable:
		return true
	}
	return false
}
