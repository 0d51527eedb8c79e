package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

// errorBody is the one form of an error.
type errorBody struct {
	Error   string `json:"error"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
	Value   any    `json:"value,omitempty"`
	Details string `json:"details,omitempty"` // the whole chain, for the operator, where it tells more

	Missing      []string   `json:"missing_dependencies,omitempty"`
	Deregistered *time.Time `json:"deregistered_at,omitempty"`
}

// parameterError is an error about a parameter of a URL, which has a code of its own in the
// agent plane.
type parameterError struct{ error }

// Unwrap gives the error.
func (e parameterError) Unwrap() error { return e.error }

// ofParameters marks errors about parameters: all that are Invalid but those about a name in
// the path.
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

// status is the one table from kinds to statuses and error codes.
func status(k fault.Kind) (int, string) {
	switch k {
	case fault.Invalid:
		return http.StatusBadRequest, "validation_error"
	case fault.NotFound:
		return http.StatusNotFound, "service_not_found"
	case fault.Exists:
		return http.StatusConflict, "service_already_exists"
	case fault.LimitReached:
		return http.StatusTooManyRequests, "rate_limit_exceeded" // the name of any bound
	case fault.Unauthentic:
		return http.StatusUnauthorized, "unauthorized"
	case fault.Forbidden:
		return http.StatusForbidden, "forbidden"
	case fault.Timeout:
		return http.StatusGatewayTimeout, "timeout"
	case fault.Unavailable:
		return http.StatusServiceUnavailable, "service_unavailable"
	case fault.Conflict:
		return http.StatusConflict, "conflict"
	case fault.TooLarge:
		return http.StatusRequestEntityTooLarge, "too_large"
	case fault.Unsupported:
		return http.StatusMethodNotAllowed, "method_not_allowed"
	case fault.Gone:
		return http.StatusGone, "service_gone"
	case fault.Unprocessable:
		return http.StatusUnprocessableEntity, "unprocessable"
	case fault.Canceled:
		return 499, "canceled" // the client is gone; the number is nginx's
	default:
		return http.StatusInternalServerError, "internal_error"
	}
}

// bodyOf puts an error into its form.
func bodyOf(err error) (int, errorBody) {
	code, name := status(fault.KindOf(err))
	b := errorBody{Error: name, Message: fault.Message(err), Field: fault.FieldOf(err), Value: fault.ValueOf(err)}
	if whole := err.Error(); whole != b.Message && (code >= http.StatusInternalServerError || !isPlain(err)) {
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

// isPlain reports whether all that an error's chain says around its message is operations and fields.
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

// specify gives the cases of a kind that have names, and the values that have fields, of their
// own.
func (b *errorBody) specify(err error) {
	var parameter parameterError
	switch value := b.Value.(type) {
	case []string:
		if fault.KindOf(err) == fault.Unprocessable {
			b.Error, b.Missing, b.Value = "dependency_not_found", value, nil
			b.Message = unmet(value)
		}
	case time.Time:
		if fault.KindOf(err) == fault.Gone {
			at := value.UTC().Truncate(time.Millisecond)
			b.Deregistered, b.Value = &at, nil
		}
	}
	switch {
	case b.Error == "unprocessable" && b.Field == "version":
		b.Error = "invalid_version"
	case errors.As(err, &parameter):
		b.Error = "invalid_parameter"
	}
}

// unmet says which dependencies there are none of.
func unmet(services []string) string {
	if len(services) == 1 {
		return "Dependency '" + services[0] + "' not found in registry"
	}
	return "Dependencies '" + strings.Join(services, "', '") + "' not found in registry"
}

// isReadable reports whether a value has a JSON form that clients can read: NaN has none,
// and 1e999 is one that most cannot.
func isReadable(v any) bool {
	text, err := json.Marshal(v)
	var back any
	return err == nil && json.Unmarshal(text, &back) == nil
}

// WriteError writes an error in the one form, for guards that refuse a request.
func WriteError(w http.ResponseWriter, err error) { writeError(w, err) }

func writeError(w http.ResponseWriter, err error) {
	code, body := bodyOf(err)
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
	writeJSON(w, code, body)
}

// writeJSON writes an answer. What cannot be written any more is the client's loss.
func writeJSON(w http.ResponseWriter, code int, v any) {
	text, err := json.Marshal(v)
	if err != nil { // a bug: every answer has a JSON form
		code, text = http.StatusInternalServerError, []byte(`{"error":"internal_error","message":"the answer has no JSON form"}`)
	}
	write(w, code, append(text, '\n'))
}

// maxKept is the largest buffer that is kept for the next answer.
const maxKept = 256 << 10

// writeAppended writes an answer that appends its own JSON, as records and answers do.
func (s *Server) writeAppended(w http.ResponseWriter, appendJSON func([]byte) []byte) {
	buf, ok := s.buffers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	*buf = append(appendJSON((*buf)[:0]), '\n')
	write(w, http.StatusOK, *buf)
	if cap(*buf) <= maxKept {
		s.buffers.Put(buf)
	}
}

// write sends a whole body; its length keeps net/http from chunking it.
func write(w http.ResponseWriter, code int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	writeWhole(w, body)
}
