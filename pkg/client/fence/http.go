package fence

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Header carries the fencing token of a request, in decimal.
const Header = "Blackhole-Fencing-Token"

// Sign adds a token to a request.
func Sign(r *http.Request, token Token) {
	r.Header.Set(Header, strconv.FormatInt(int64(token), 10))
}

// Handler refuses writing requests with a stale token, and passes on others one at a time. GET,
// HEAD, OPTIONS and TRACE do not write (RFC 9110, 9.2.1) and pass without a check.
//
// Its own answers are problem documents (RFC 9457): 400 for a malformed header, 428 for a missing
// token (RFC 6585, 3), 412 for a stale token, 500 for a failure of the guard.
func Handler(g Guarded, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			next.ServeHTTP(w, r)
			return
		}
		text := r.Header.Get(Header)
		token, err := strconv.ParseInt(text, 10, 64)
		switch {
		case text == "":
			problem(w, http.StatusPreconditionRequired, "the header "+Header+" is required")
			return
		case err != nil || token <= 0 || len(r.Header.Values(Header)) > 1:
			problem(w, http.StatusBadRequest, "the header "+Header+" must be one number above 0")
			return
		}
		err = g.Do(Token(token), func() error {
			next.ServeHTTP(w, r)
			return nil
		})
		switch {
		case err == nil:
		case fault.KindOf(err) == fault.Conflict:
			problem(w, http.StatusPreconditionFailed, "the fencing token is stale: another holds the lock")
		default:
			problem(w, http.StatusInternalServerError, "the fencing token could not be checked")
		}
	})
}

func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // an error means that the client has left
		"title": http.StatusText(status), "status": status, "detail": detail,
	})
}
