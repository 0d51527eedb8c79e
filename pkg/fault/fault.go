// Package fault is the project's error type: an operation, a kind, the field at fault and a
// cause.
//
// Components return *Error. A front end maps its Kind to a status in one table. The package
// imports no other package of the project, so that every package may import it.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Kind classifies an error for the caller's next step. Kinds cross the wire as numbers: new
// kinds go to the end of the list, and the order never changes.
type Kind uint8

const (
	// Internal means a broken invariant or a failure outside the caller's control. It is the
	// zero value.
	Internal Kind = iota
	// Invalid means input that fails on every retry; Field names the wrong part.
	Invalid
	// NotFound means an unknown name.
	NotFound
	// Exists means that the thing, or a newer version of it, exists already.
	Exists
	// LimitReached means that the request would exceed a quota or limit.
	LimitReached
	// Unauthentic means a signature, key or encoding that fails verification.
	Unauthentic
	// Forbidden means that the caller lacks the right to the operation.
	Forbidden
	// Timeout means a deadline that passed before the answer.
	Timeout
	// Unavailable means a service that is not ready or lost its network; a retry may succeed.
	Unavailable
	// Conflict means that a precondition on the current version failed.
	Conflict
	// TooLarge means a body or message above its limit.
	TooLarge
	// Unsupported means an unknown method, media type or protocol version.
	Unsupported
	// Canceled means an operation ended by its caller.
	Canceled
	// Gone means a removed name; Value is the time.Time of the removal.
	Gone
	// Unprocessable means well-formed input that conflicts with the state or a semantic rule.
	Unprocessable
	// PoolExhausted means that a pool has nothing left for the caller. See PoolOf for its name, and whether the caller has its share.
	PoolExhausted
	// PaymentRequired means that a provider asks for a payment; Value is its terms, a []byte with text such as JSON.
	PaymentRequired

	kinds // count, keep last
)

// String returns the kind's stable lower-case name.
func (k Kind) String() string {
	names := [kinds]string{
		"internal", "invalid", "not_found", "exists", "limit_reached", "unauthentic", "forbidden",
		"timeout", "unavailable", "conflict", "too_large", "unsupported", "canceled", "gone", "unprocessable", "pool_exhausted",
		"payment_required",
	}
	if k >= kinds {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return names[k]
}

// Known reports whether this version has the kind. A number from the wire may be of a later one.
func (k Kind) Known() bool { return k < kinds }

// Error makes a Kind usable as a target of errors.Is: it matches every *Error of that kind.
func (k Kind) Error() string { return k.String() }

// Error is the error type of every package of the project.
type Error struct {
	Op    string // operation, "package.Function"; empty if a field path suffices
	Kind  Kind
	Field string // path of the wrong input in API names ("near.latitude"); empty without one
	Value any    // wrong value, for people; nil for a secret or large value
	Err   error  // cause or message; never nil
}

// New returns an error of a kind with a message and no field.
func New(op string, kind Kind, format string, args ...any) *Error {
	return &Error{Op: op, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Invalidf returns an Invalid error about the named field. People see value; nil hides it.
func Invalidf(field string, value any, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Field: field, Value: value, Err: fmt.Errorf(format, args...)}
}

// Refused returns an error about a field, of a kind that is not Invalid. Use it where the caller
// adds the operation with Wrap.
func Refused(kind Kind, field, format string, args ...any) error {
	return &Error{Kind: kind, Field: field, Err: New("", kind, format, args...).Err}
}

// Parts of the field of a PoolExhausted error: "pool.leases" is a full pool, and "pool.leases.share" one that has more for others.
const (
	poolField  = "pool."
	shareField = ".share"
)

// Exhausted returns a PoolExhausted error. With share the pool has more for others, and this caller has its share. Say in the message
// what frees a place.
func Exhausted(op, pool string, share bool, format string, args ...any) error {
	field := poolField + pool
	if share {
		field += shareField
	}
	return &Error{Op: op, Kind: PoolExhausted, Field: field, Err: New("", PoolExhausted, format, args...).Err}
}

// PoolOf returns the name of the pool of a PoolExhausted error, and whether the caller has its share; empty for other errors.
func PoolOf(err error) (pool string, share bool) {
	if pool, ok := strings.CutPrefix(FieldOf(err), poolField); ok && KindOf(err) == PoolExhausted {
		return strings.CutSuffix(pool, shareField)
	}
	return "", false
}

// Wrap adds an operation to err and keeps its kind and field. Context errors become Timeout or
// Canceled, and any other error becomes Internal. Wrap(op, nil) is nil.
func Wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: KindOf(err), Field: FieldOf(err), Value: ValueOf(err), Err: err}
}

// As is Wrap with an explicit kind, for causes from other libraries.
func As(op string, kind Kind, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: kind, Field: FieldOf(err), Value: ValueOf(err), Err: err}
}

// In prefixes err's field with a path. A nested validator then needs no knowledge of its
// position: In("near", Invalidf("latitude", ...)) names "near.latitude". In(path, nil) is nil.
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

// Error formats "op: field: cause" without empty parts.
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

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is e's Kind or a matching template: an *Error with e's kind and,
// where set, e's Op and Field. A template's field also matches the fields below it: "location"
// matches "location.latitude".
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

// under reports whether field equals path or lies below it. Every field lies below the empty
// path.
func under(path, field string) bool {
	rest, ok := strings.CutPrefix(field, path)
	return ok && (path == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// KindOf returns the kind of the outermost *Error in err's chain. Context errors without one are
// Timeout or Canceled. All other errors, and nil, are Internal.
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

// OpOf returns the operation of the outermost *Error in err's chain, or "".
func OpOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Op
	}
	return ""
}

// FieldOf returns the field of the outermost *Error with a field, or "".
func FieldOf(err error) string {
	if e := named(err); e != nil {
		return e.Field
	}
	return ""
}

// Message returns the innermost cause's text, without operations and fields. A front end shows
// it beside the separate field.
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

// ValueOf returns the wrong value for FieldOf, or nil.
func ValueOf(err error) any {
	if e := named(err); e != nil {
		return e.Value
	}
	return nil
}

// named returns the outermost *Error with a field.
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
