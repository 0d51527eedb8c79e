package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/blackhole/blackhole/pkg/fault"
)

// A service that somebody else carries connections to is spoken to in its own protocol over them, and by no other way.
func TestCarried(t *testing.T) {
	moves := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		if r.URL.Path == "/" {
			w.Header().Set("Location", "/ui")
			w.WriteHeader(http.StatusFound)
		}
	}))
	t.Cleanup(moves.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	away := httptest.NewServer(http.RedirectHandler("https://localhost/", http.StatusMovedPermanently))
	t.Cleanup(away.Close)
	for name, c := range map[string]struct {
		protocols []string
		at        string
		state     State
		detail    string
		kind      string
		dials     int
	}{
		"ollama":            {protocols: []string{"Ollama"}, kind: "ollama", at: webServer(t, "/api/tags", `{"models":[]}`, 200), state: Answers, detail: "answered 200", dials: 1},
		"openai, before":    {protocols: []string{"http", "openai"}, kind: "openai", at: webServer(t, "/v1/models", `{"data":[]}`, 200), state: Answers, detail: "answered 200", dials: 1},
		"gRPC":              {protocols: []string{"grpc"}, kind: "grpc", at: grpcServer(t, grpc_health_v1.HealthCheckResponse_SERVING, true), state: Answers, detail: "is SERVING", dials: 1},
		"another protocol":  {protocols: []string{"ollama"}, kind: "ollama", at: webServer(t, "/api/tags", "<html>", 200), state: Wrong, detail: "answered 200, and not in the form of ollama", dials: 1},
		"socks":             {protocols: []string{"socks5"}, kind: "socks5", at: serve(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 8)); _, _ = c.Write([]byte{5, 0}) }), state: Answers, detail: "lets in", dials: 1},
		"no protocol":       {kind: "tcp", at: serve(t, func(net.Conn) {}), state: Answers, detail: "connected", dials: 1},
		"unknown protocol":  {protocols: []string{"wireguard", "quic", "https"}, kind: "tcp", at: secure.Listener.Addr().String(), state: Answers, detail: "connected", dials: 1},
		"within":            {protocols: []string{"http"}, kind: "http", at: moves.URL, state: Answers, detail: "answered 200", dials: 2},
		"to another port":   {protocols: []string{"http"}, kind: "http", at: away.URL, detail: "answered 301: a redirect that is not followed", dials: 1},
		"closes":            {protocols: []string{"http"}, kind: "http", at: serve(t, func(net.Conn) {}), state: Refuses, detail: "closes connections without an answer", dials: 1},
		"nothing serves":    {protocols: []string{"ollama"}, kind: "ollama", state: Refuses, detail: "nothing listens", dials: 1},
		"nothing, untold":   {kind: "tcp", state: Refuses, detail: "nothing listens", dials: 1},
		"not let through":   {protocols: []string{"ollama"}, kind: "ollama", at: "no", detail: "this peer may not, or cannot, speak to it now", dials: 1},
		"not through, gRPC": {protocols: []string{"grpc"}, kind: "grpc", at: "no", detail: "this peer may not, or cannot, speak to it now", dials: 1},
	} {
		t.Run(name, func(t *testing.T) {
			target, dials := Carried(c.protocols), 0
			require.Equal(t, c.kind, target.Kind)
			require.NotEqual(t, target.String(), Target{Kind: c.kind, Host: "localhost", Port: 80}.String())
			_, at, named := strings.Cut(c.at, "://")
			if !named {
				at = c.at
			}
			p := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) {
				t.Error("it was not dialed by its way")
				return nil, errors.New("no")
			}})
			o, measured := p.Probe(t.Context(), target.Over(func(ctx context.Context) (net.Conn, error) {
				dials++
				switch at {
				case "":
					return nil, fault.New("", fault.Gone, "nothing serves")
				case "no":
					return nil, &net.OpError{Op: "dial", Err: errors.New("the way is closed")}
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", at)
			}))
			require.Equal(t, c.state, o.State, o)
			require.Equal(t, c.state != "", measured)
			require.Equal(t, c.detail, o.Detail)
			require.Equal(t, c.dials, dials)
		})
	}
}
