// Package httpapi serves the discovery plane to applications over HTTP: JSON, server-sent
// events for watches, health endpoints and metrics.
//
// It translates and nothing else. Every error, those of the router included, has one form
// and passes through one table. The server answers only requests that name a loopback
// host, and no cross-origin request of a browser: a web page must not reach the peer.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of the server.
const (
	readHeader  = 5 * time.Second
	readRequest = 30 * time.Second
	idle        = 60 * time.Second
	writeAnswer = 30 * time.Second
	maxHeader   = 16 << 10
	maxBody     = 64 << 10 // one record or one query
	maxBatch    = 32 << 20 // discovery.MaxBatch records of 3 KiB
)

// Config are the parts of a Server; all are required but Logger.
type Config struct {
	Registrar discovery.Registrar
	Finder    discovery.Finder
	Node      discovery.Node
	Metrics   http.Handler // of /v1/metrics
	Logger    *slog.Logger
}

// Server is the HTTP front end.
type Server struct {
	Config
	mux  *http.ServeMux
	http *http.Server

	closing context.Context // done when Close begins: watches end
	close   context.CancelFunc
}

// New makes a server that Serve starts.
func New(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{Config: c, mux: http.NewServeMux()}
	s.closing, s.close = context.WithCancel(context.Background())
	s.routes()
	s.http = &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: readHeader, ReadTimeout: readRequest, IdleTimeout: idle, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// routes is the whole API of this front end.
func (s *Server) routes() {
	for pattern, h := range map[string]handler{
		"POST /v1/discovery/records":        s.register,
		"POST /v1/discovery/records:batch":  s.registerBatch,
		"GET /v1/discovery/records":         s.list,
		"GET /v1/discovery/records/{id}":    s.get,
		"PUT /v1/discovery/records/{id}":    s.update,
		"DELETE /v1/discovery/records/{id}": s.withdraw,
		"GET /v1/discovery/resolve":         s.resolve,
		"POST /v1/discovery/query":          s.query,
		"GET /v1/discovery/query":           s.queryByParameters,
		"GET /v1/discovery/watch":           s.watch,
		"GET /v1/status":                    s.status,
		"GET /v1/peers":                     s.peers,
		"GET /v1/health":                    s.health,
		"GET /livez":                        s.live,
		"GET /readyz":                       s.ready,
	} {
		s.mux.Handle(pattern, s.answering(h))
	}
	s.mux.Handle("GET /v1/metrics", s.Metrics)
}

// Handler is the whole server as a handler, guards included.
func (s *Server) Handler() http.Handler {
	protect := http.NewCrossOriginProtection()
	protect.SetDenyHandler(s.answering(func(http.ResponseWriter, *http.Request) error {
		return fault.New("httpapi", fault.Forbidden, "cross-origin requests are refused")
	}))
	return s.guard(protect.Handler(http.HandlerFunc(s.route)))
}

// Serve answers on l until Close; it takes l over.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fault.As("httpapi.Serve", fault.Internal, err)
	}
	return nil
}

// Close lets requests under way finish for a moment, then ends them. Watches end at once.
func (s *Server) Close() {
	const graceful = 3 * time.Second
	s.close()
	ctx, cancel := context.WithTimeout(context.Background(), graceful)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.http.Close()
	}
}

// handler is an http.HandlerFunc that returns its error instead of writing it.
type handler func(w http.ResponseWriter, r *http.Request) error

// answering writes a handler's error, and turns a panic into one: one bad request must not
// end the daemon.
func (s *Server) answering(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				s.Logger.Error("panic in a request", "path", r.URL.Path, "panic", p)
				writeError(w, fault.New("httpapi", fault.Internal, "internal error"))
			}
		}()
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeAnswer)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			s.Logger.Debug("no write deadline", "error", err)
		}
		if err := h(w, r); err != nil {
			writeError(w, err)
		}
	})
}

// guard admits only requests that name a loopback host, which a rebound DNS name is not.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if ip := net.ParseIP(trimBrackets(host)); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			writeError(w, &fault.Error{
				Kind: fault.Forbidden, Field: "host", Value: r.Host, Err: errors.New("is not a loopback host"),
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func trimBrackets(host string) string {
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		return host[1 : len(host)-1]
	}
	return host
}

// route serves a known route. For the others the router's own answer gives way to one in
// our form.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	h, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	probe := &discard{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		writeError(w, &fault.Error{
			Kind: fault.Unsupported, Field: "method", Value: r.Method, Err: errors.New("is not allowed here; use " + allow),
		})
		return
	}
	writeError(w, &fault.Error{Kind: fault.NotFound, Field: "path", Value: r.URL.Path, Err: errors.New("is no route of this API")})
}

// discard is a response that only its header is wanted of.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
