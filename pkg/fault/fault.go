// Package fault is the one error type of the project: an operation, a kind, the
// field at fault and a cause.
//
// A component returns *Error; a front end maps its Kind to a status in one
// table. The package imports nothing of the project, and everything may import it.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Kind classifies an error for the caller's next step. Kinds cross the wire as
// numbers: the list only grows at its end and is never reordered.
type Kind uint8

const (
	// Internal is a broken invariant or a failure that the caller cannot mend. It is the zero value.
	Internal Kind = iota
	// Invalid is input that no retry can make right; Field names what is wrong.
	Invalid
	// NotFound is a named thing that does not exist.
	NotFound
	// Exists is a thing that is there already, or a newer version of it.
	Exists
	// LimitReached is a quota or a bound that the request would break.
	LimitReached
	// Unauthentic is a signature, key or encoding that does not verify.
	Unauthentic
	// Forbidden is a caller without the right to the operation.
	Forbidden
	// Timeout is a deadline that passed before an answer came.
	Timeout
	// Unavailable is a service that is not ready or lost its network; a retry may succeed.
	Unavailable
	// Conflict is a precondition on the current version that does not hold.
	Conflict
	// TooLarge is a body or a message above its bound.
	TooLarge
	// Unsupported is a method, media type or protocol version that is not served.
	Unsupported
	// Canceled is an operation that its caller ended.
	Canceled
	// Gone is a named thing that existed and was taken away; Value is the time.Time when.
	Gone
	// Unprocessable is input that is well formed but does not fit the state or a rule of its meaning.
	Unprocessable

	kinds // count, keep last
)

// String gives the kind's stable lower-case name.
func (k Kind) String() string {
	names := [kinds]string{
		"internal", "invalid", "not_found", "exists", "limit_reached", "unauthentic", "forbidden",
		"timeout", "unavailable", "conflict", "too_large", "unsupported", "canceled", "gone", "unprocessable",
	}
	if k >= kinds {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return names[k]
}

// Error makes a Kind usable as a target of errors.Is: every *Error of that kind matches it.
func (k Kind) Error() string { return k.String() }

// Error is what every package of the project returns.
type Error struct {
	Op    string // operation, "package.Function"; empty when a field path alone says enough
	Kind  Kind
	Field string // path of the input at fault in API names ("near.latitude"); empty when there is none
	Value any    // offending value, for people; nil when secret or large
	Err   error  // cause, or the message; never nil
}

// New returns an error of a kind with a message and no field.
func New(op string, kind Kind, format string, args ...any) *Error {
	return &Error{Op: op, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Invalidf returns an Invalid error about the named field. Value is shown to people; pass nil to hide it.
func Invalidf(field string, value any, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Field: field, Value: value, Err: fmt.Errorf(format, args...)}
}

// Refused returns an error about a field, of a kind that is not Invalid. Use it where the caller
// adds the operation with Wrap.
func Refused(kind Kind, field, format string, args ...any) error {
	return &Error{Kind: kind, Field: field, Err: New("", kind, format, args...).Err}
}

// Wrap adds an operation to err and keeps its kind and field. Context errors become
// Timeout or Canceled, and any other error becomes Internal. Wrap(op, nil) is nil.
func Wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: KindOf(err), Field: FieldOf(err), Value: ValueOf(err), Err: err}
}

// As is Wrap with a kind of the caller's choice, for causes from other libraries.
func As(op string, kind Kind, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: kind, Field: FieldOf(err), Value: ValueOf(err), Err: err}
}

// In puts a field path in front of err's field, so that a nested validator need not
// know where its input stood: In("near", Invalidf("latitude", ...)) names "near.latitude".
// In(path, nil) is nil.
func In(path string, err error) error {
	if err == nil {
		return nil
	}
	field := FieldOf(err)
	switch {
	case field == "":
		field = path
	case strings.HasPrefix(field, "["):
		field = path + field
	default:
		field = path + "." + field
	}
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Kind: Invalid, Field: field, Err: err}
	}
	return &Error{Op: e.Op, Kind: e.Kind, Field: field, Value: e.Value, Err: e.Err}
}

// Error renders "op: field: cause" without the parts that are empty.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteString(": ")
	}
	var inner *Error
	if e.Field != "" && !(errors.As(e.Err, &inner) && inner.Field == e.Field) {
		b.WriteString(e.Field)
		b.WriteString(": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether e is of the kind target, or fits the template target: an *Error
// whose kind is e's and whose Op and Field, where set, are e's. A template's field also
// fits the fields below it: "location" fits "location.latitude".
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Kind:
		return t == e.Kind
	case *Error:
		return t.Kind == e.Kind && (t.Op == "" || t.Op == e.Op) && under(t.Field, FieldOf(e))
	default:
		return false
	}
}

// under reports whether field is path or lies below it; the empty path is above all.
func under(path, field string) bool {
	rest, ok := strings.CutPrefix(field, path)
	return ok && (path == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// KindOf gives the kind of the outermost *Error in err's chain. Context errors without
// one are Timeout or Canceled; everything else, nil included, is Internal.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Canceled
	default:
		return Internal
	}
}

// OpOf gives the operation of the outermost *Error in err's chain, or "".
func OpOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Op
	}
	return ""
}

// FieldOf gives the field of the outermost *Error that names one, or "".
func FieldOf(err error) string {
	if e := named(err); e != nil {
		return e.Field
	}
	return ""
}

// Message gives the innermost cause's text, without operations and fields: what a front
// end puts beside the separate field.
func Message(err error) string {
	var e *Error
	for errors.As(err, &e) {
		err = e.Err
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// ValueOf gives the offending value that goes with FieldOf, or nil.
func ValueOf(err error) any {
	if e := named(err); e != nil {
		return e.Value
	}
	return nil
}

// named finds the outermost *Error with a field.
func named(err error) *Error {
	var e *Error
	for errors.As(err, &e) {
		if e.Field != "" {
			return e
		}
		err = e.Err
	}
	return nil
}
