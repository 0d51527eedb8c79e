package access

import (
	"context"
	"net"
	"net/http"

	"github.com/blackhole/blackhole/pkg/fault"
)

type connKey struct{}

// ConnContext stores the other end of a connection, for Client. Use it as http.Server.ConnContext.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c.RemoteAddr())
}

// HTTP wraps next. It admits only callers that fulfil the need, and passes the caller on in the
// context of the request. All others go to refuse with an error of kind Forbidden or Unauthentic;
// for the latter the WWW-Authenticate header is set.
func (g *Guard) HTTP(need Need, next http.Handler, refuse func(http.ResponseWriter, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := g.enter(credentialsOfRequest(r), need)
		if err != nil {
			g.challenge(w, r, err)
			refuse(w, err)
			return
		}
		ctx, cancel := g.admit(r.Context(), c)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func credentialsOfRequest(r *http.Request) callCredentials {
	e := callCredentials{authorization: r.Header["Authorization"], address: r.RemoteAddr}
	if r.TLS != nil {
		e.chains = r.TLS.VerifiedChains
	}
	e.remote, _ = r.Context().Value(connKey{}).(net.Addr)
	return e
}

// challenge sets the WWW-Authenticate header (RFC 9110, section 11.6.1, and RFC 6750, section 3).
// Certificates have no scheme there.
func (g *Guard) challenge(w http.ResponseWriter, r *http.Request, err error) {
	if fault.KindOf(err) != fault.Unauthentic {
		return
	}
	value := `Bearer realm="blackhole"`
	if len(r.Header["Authorization"]) > 0 {
		value += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", value)
}
