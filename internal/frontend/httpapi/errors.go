package httpapi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
)

// errorBody is an error in JSON.
type errorBody struct {
	Error   string `json:"error"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
	Value   any    `json:"value,omitempty"`
	Details string `json:"details,omitempty"` // the whole chain, for the operator, if longer than the message

	Missing      []string   `json:"missing_dependencies,omitempty"`
	Deregistered *time.Time `json:"deregistered_at,omitempty"`
	Terms        any        `json:"terms,omitempty"` // of a payment: JSON, or else text
}

// parameterError is an error about a parameter of a URL, which has its own code in the agent
// plane.
type parameterError struct{ error }

// Unwrap supports package errors.
func (e parameterError) Unwrap() error { return e.error }

// ofParameters marks Invalid errors as errors about parameters, except for names in the path.
func ofParameters(err error) error {
	if fault.KindOf(err) != fault.Invalid {
		return err
	}
	switch fault.FieldOf(err) {
	case "service", "name", "body":
		return err
	}
	return parameterError{err}
}

// status is the table from kinds of faults to statuses and error codes.
func status(k fault.Kind) (code int, name string) {
	table := [...]struct {
		code int
		name string
	}{
		fault.Invalid:       {http.StatusBadRequest, "validation_error"},
		fault.NotFound:      {http.StatusNotFound, "service_not_found"},
		fault.Exists:        {http.StatusConflict, "service_already_exists"},
		fault.LimitReached:  {http.StatusTooManyRequests, "rate_limit_exceeded"},
		fault.Unauthentic:   {http.StatusUnauthorized, "unauthorized"},
		fault.Forbidden:     {http.StatusForbidden, "forbidden"},
		fault.Timeout:       {http.StatusGatewayTimeout, "timeout"},
		fault.Unavailable:   {http.StatusServiceUnavailable, "service_unavailable"},
		fault.Conflict:      {http.StatusConflict, "conflict"},
		fault.TooLarge:      {http.StatusRequestEntityTooLarge, "too_large"},
		fault.Unsupported:   {http.StatusMethodNotAllowed, "method_not_allowed"},
		fault.Gone:          {http.StatusGone, "service_gone"},
		fault.Unprocessable: {http.StatusUnprocessableEntity, "unprocessable"},
		fault.PoolExhausted: {http.StatusTooManyRequests, "pool_exhausted"},

		fault.PaymentRequired: {http.StatusPaymentRequired, "payment_required"},

		fault.Canceled: {499, "canceled"}, // nginx's number for a client that left
	}
	if int(k) < len(table) && table[k].code != 0 {
		return table[k].code, table[k].name
	}
	return http.StatusInternalServerError, "internal_error"
}

// bodyOf renders an error.
func bodyOf(err error) (int, errorBody) {
	code, name := status(fault.KindOf(err))
	b := errorBody{Error: name, Message: clean.Message(fault.Message(err)), Field: clean.Message(fault.FieldOf(err)), Value: fault.ValueOf(err)}
	if whole := clean.Message(err.Error()); whole != b.Message && (code >= http.StatusInternalServerError || !isPlain(err)) {
		b.Details = whole
	}
	if r, _ := utf8.DecodeRuneInString(b.Message); code == http.StatusBadRequest && b.Field != "" && unicode.IsLower(r) {
		b.Message = "Invalid " + b.Field + ": " + b.Message
	}
	b.specify(err)
	if !isReadable(b.Value) {
		b.Value = nil
	}
	return code, b
}

// isPlain reports whether the chain of an error adds only operations and fields to its message.
func isPlain(err error) bool {
	var inner *fault.Error
	for errors.As(err, &inner) {
		switch err.(type) {
		case *fault.Error, parameterError:
			err = errors.Unwrap(err)
		default:
			return false
		}
	}
	return true
}

// specify sets the error codes of special cases and the fields of special values.
func (b *errorBody) specify(err error) {
	var parameter parameterError
	switch value := b.Value.(type) {
	case []string:
		if fault.KindOf(err) == fault.Unprocessable {
			b.Error, b.Missing, b.Value = "dependency_not_found", value, nil
			b.Message = unmet(value)
		}
	case time.Duration:
		b.Value = nil // Retry-After has it
	case []byte:
		if b.Value = nil; fault.KindOf(err) == fault.PaymentRequired {
			if b.Terms = json.RawMessage(value); !json.Valid(value) {
				b.Terms = clean.Message(string(value))
			}
		}
	case time.Time:
		if fault.KindOf(err) == fault.Gone {
			at := instances.ShownTime(value)
			b.Deregistered, b.Value = &at, nil
		}
	}
	switch {
	case b.Error == "unprocessable" && b.Field == "version":
		b.Error = "invalid_version"
	case b.Error == "service_not_found" && b.Field == fieldPath:
		b.Error = "not_found"
	case errors.As(err, &parameter):
		b.Error = "invalid_parameter"
	}
}

// unmet lists the missing dependencies in the words of SAP-044 Registry.
func unmet(services []string) string {
	if len(services) == 1 {
		return "Dependency '" + services[0] + "' not found in registry"
	}
	return "Dependencies '" + strings.Join(services, "', '") + "' not found in registry"
}

// maxValue bounds the wrong value in an error, in bytes of JSON: a path may have 20 kB.
const maxValue = 1 << 10

// isReadable reports whether common clients can read the JSON form of a value, and people too. NaN has no form,
// and most clients cannot read 1e999.
func isReadable(v any) bool {
	text, err := json.Marshal(v)
	var back any
	return err == nil && len(text) <= maxValue && json.Unmarshal(text, &back) == nil
}

func writeError(w http.ResponseWriter, err error) {
	code, body := bodyOf(err)
	writeErrorBody(w, err, code, body)
}

// writeErrorBody writes the rendered form of err.
func writeErrorBody(w http.ResponseWriter, err error, code int, body any) {
	switch h := w.Header(); code {
	case http.StatusUnauthorized:
		if h.Get("WWW-Authenticate") == "" {
			h.Set("WWW-Authenticate", `Bearer realm="blackhole"`)
		}
	case http.StatusTooManyRequests:
		if d, ok := access.RetryAfter(err); ok {
			h.Set("Retry-After", strconv.FormatInt(int64(d/time.Second), 10))
		}
	}
	if writeJSON(w, code, body) != nil { // a bug: every error has a JSON form
		write(w, http.StatusInternalServerError, []byte(`{"error":"internal_error","message":"the error has no JSON form: report this bug"}`+"\n"))
	}
}

// writeJSON writes an answer. It fails, before writing, for values without a JSON form. A
// failure to send is the client's loss.
func writeJSON(w http.ResponseWriter, code int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fault.As("httpapi", fault.Internal, err)
	}
	write(w, code, append(text, '\n'))
	return nil
}

// maxKept is the largest buffer, in bytes, kept for the next answer.
const maxKept = 256 << 10

// bufferPool reuses the buffers of answers that append their own JSON.
type bufferPool struct{ pool sync.Pool } // of *[]byte

// write writes an answer of about n bytes, for which it has room before it is built.
func (p *bufferPool) write(w http.ResponseWriter, n int, appendJSON func([]byte) []byte) error {
	release, err := reserve(w, n, 0)
	if err != nil {
		return err
	}
	defer release()
	buf, ok := p.pool.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	*buf = append(appendJSON((*buf)[:0]), '\n')
	writeReserved(w, http.StatusOK, *buf, n)
	if cap(*buf) <= maxKept {
		p.pool.Put(buf)
	}
	return nil
}

// write sends a whole body, if the budget of answers has room for it.
func write(w http.ResponseWriter, code int, body []byte) { writeReserved(w, code, body, 0) }

// reserve puts about n bytes of an answer into the budget before they are built or read, so that a reader who waits,
// or is refused, costs no memory. It waits for room until patience ends.
func reserve(w http.ResponseWriter, n int, patience time.Duration) (release func(), err error) {
	if resp := responseOf(w); resp != nil {
		return resp.charge(n, patience)
	}
	return func() {}, nil
}

// sharedPatience is how long a body that requests share waits for the budget: it takes no memory meanwhile, and many clients may ask at once.
const sharedPatience = time.Second

// writeReserved is write for a body of which the budget has some bytes already. The length keeps net/http from
// chunking it.
func writeReserved(w http.ResponseWriter, code int, body []byte, reserved int) {
	resp := responseOf(w)
	var packed []byte
	if resp != nil {
		release, err := resp.charge(len(body)-reserved, 0)
		if err != nil {
			writeError(w, err)
			return
		}
		defer release()
		if resp.packer != nil {
			packed = resp.packer.pack(w.Header(), code, body)
		}
	}
	setContent(w.Header())
	if packed != nil {
		body = packed
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	writeWhole(w, body)
}

func setContent(h http.Header) {
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding")
}

// charge puts n bytes of an answer into the budget until release.
func (r *response) charge(n int, patience time.Duration) (release func(), err error) {
	if r.changes {
		release, err = r.answers.TakeForChange(r.caller, "httpapi", n)
	} else {
		release, err = r.answers.TakeBytes(r.caller, "httpapi", n, patience)
	}
	if release == nil {
		release = func() {}
	}
	return release, err
}

// pieceBytes is the size after which a part of a long answer goes out.
const pieceBytes = 64 << 10

// writeList sends a list in pieces between two texts: of each element its size, about, and its JSON, which may be
// empty.
func writeList[T any](
	w http.ResponseWriter, before string, list []T, size func(T) int, render func(T) []byte, after string,
) error {
	n := 0
	for _, one := range list {
		n += size(one)
	}
	return writePieces(w, n, func(put func([]byte)) error {
		put([]byte(before))
		some := false
		for _, one := range list {
			text := render(one)
			if len(text) == 0 {
				continue
			}
			if some {
				put([]byte(","))
			}
			put(text)
			some = true
		}
		put([]byte(after))
		return nil
	})
}

// writePieces sends a JSON answer of about n bytes, so that no more of it is in memory than one piece and one of its
// elements, which go through put. An answer of one piece is sent as a whole. Errors: those of pieces before the first
// piece went out, and of the budget, which has room for two pieces before.
func writePieces(w http.ResponseWriter, n int, pieces func(put func([]byte)) error) error {
	n = min(n, 2*pieceBytes)
	release, err := reserve(w, n, 0)
	if err != nil {
		return err
	}
	defer release()
	var held []byte
	var out io.Writer // nil before the first piece
	end := func() {}
	send := func(text []byte) {
		if out == nil {
			setContent(w.Header())
			out = w
			if resp := responseOf(w); resp != nil && resp.packer != nil {
				out, end = resp.packer.stream(w.Header(), w)
			}
			w.WriteHeader(http.StatusOK)
		}
		_, _ = out.Write(text) // a failure is the client's loss
	}
	err = pieces(func(element []byte) {
		if len(held)+len(element) < pieceBytes {
			held = append(held, element...)
			return
		}
		send(held)
		if held = held[:0]; len(element) < pieceBytes {
			held = append(held, element...)
		} else {
			send(element)
		}
	})
	held = append(held, '\n')
	switch {
	case out == nil && err != nil:
		return err
	case out == nil:
		writeReserved(w, http.StatusOK, held, n)
		return nil
	case err != nil:
		panic(http.ErrAbortHandler) // net/http breaks the connection: nobody takes the answer for complete
	}
	send(held)
	end()
	return nil
}
