// Package httpapi serves the discovery plane and the coordination plane to applications over
// HTTP: JSON, server-sent events for watches, health endpoints and metrics.
//
// It translates and nothing else. Every error, those of the router included, has one form
// and passes through one table. The server answers only requests that name a loopback
// host, and no cross-origin request of a browser: a web page must not reach the peer.
//
// What a body or a parameter says counts, not the Content-Type of the request: clients
// such as curl send that of a form by default.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of the server.
const (
	readHeader  = 5 * time.Second
	readRequest = 30 * time.Second
	idle        = 60 * time.Second
	writeAnswer = 30 * time.Second // from its first byte; of a watch, for one event
	maxHeader   = 16 << 10
	maxBody     = 64 << 10 // one record or one query
	maxBatch    = 32 << 20 // discovery.MaxBatch records of 3 KiB
	maxBatches  = 4        // at a time
)

// Config are the parts of a Server; Registrar, Finder, Node and Metrics are required.
type Config struct {
	Registrar  discovery.Registrar
	Finder     discovery.Finder
	Node       discovery.Node
	Metrics    http.Handler // of /v1/metrics
	Logger     *slog.Logger // nil: silence
	MaxWatches int          // open at a time; 0 is 1024
	MaxWaits   int          // requests that wait for locks at a time; 0 is 1024

	Coordination *Coordination // nil: not served
}

// Server is the HTTP front end.
type Server struct {
	Config
	mux     *http.ServeMux
	http    *http.Server
	watches slots
	waits   slots
	batches slots
	buffers sync.Pool // of *[]byte, for answers

	closing context.Context // done when Close begins: watches end
	close   context.CancelFunc
}

// New makes a server that Serve starts.
func New(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxWatches == 0 {
		c.MaxWatches = 1024
	}
	if c.MaxWaits == 0 {
		c.MaxWaits = 1024
	}
	s := &Server{
		Config: c, mux: http.NewServeMux(),
		watches: make(slots, c.MaxWatches), waits: make(slots, c.MaxWaits), batches: make(slots, maxBatches),
	}
	s.closing, s.close = context.WithCancel(context.Background())
	s.routes()
	s.http = &http.Server{
		Handler:           s.Handler(),
		ConnContext:       withConn,
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
		s.mux.Handle(pattern, h)
	}
	s.mux.Handle("GET /v1/metrics", s.Metrics)
	if s.Coordination != nil {
		s.coordinationRoutes()
	}
}

// Handler is the whole server as a handler, guards included.
func (s *Server) Handler() http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp := &response{ResponseWriter: w, conn: connOf(r)}
		defer s.recovered(resp, r)
		if err := admit(r, origin); err != nil {
			writeError(resp, err)
			return
		}
		s.route(resp, r)
	})
}

// Serve answers on l until Close; it takes l over.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(conns{l}); !errors.Is(err, http.ErrServerClosed) {
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

// ServeHTTP writes the error.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		writeError(w, err)
	}
}

// response knows whether an answer has begun, and bounds the time to write it.
type response struct {
	http.ResponseWriter
	conn  *conn // that it goes over, or nil
	begun bool
}

// WriteHeader begins the answer.
func (r *response) WriteHeader(code int) {
	r.begin()
	r.ResponseWriter.WriteHeader(code)
}

// Write begins the answer if need be.
func (r *response) Write(p []byte) (int, error) {
	r.begin()
	return r.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *response) begin() {
	if !r.begun {
		r.begun = true
		_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(writeAnswer)) // what has none needs none
	}
}

// recovered turns a panic into an error: one bad request must not end the daemon. An
// answer that has begun is cut off, so that nobody takes it for whole.
func (s *Server) recovered(w *response, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	s.Logger.Error("panic in a request", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	if w.begun {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	writeError(w, fault.New("httpapi", fault.Internal, "internal error"))
}

// admit lets only requests in that name a loopback host, which a rebound DNS name is not,
// and that no page of another origin makes. Reading counts too: it costs lookups, and the
// browser would hide only the answer.
func admit(r *http.Request, origin *http.CrossOriginProtection) error {
	if !isLoopback(r.Host) {
		return &fault.Error{Op: "httpapi", Kind: fault.Forbidden, Field: "host", Value: r.Host, Err: errors.New("is not a loopback host")}
	}
	as := *r
	as.Method = http.MethodPost // of others, Check lets the safe methods pass
	if err := origin.Check(&as); err != nil {
		return fault.New("httpapi", fault.Forbidden, "cross-origin requests are refused")
	}
	return nil
}

func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// slots bound how many of something there are at a time.
type slots chan struct{}

// take takes one until release is called. It fails with LimitReached when none is free.
func (s slots) take(what string) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	default:
		return nil, fault.New("httpapi", fault.LimitReached, "%d %s are open already", cap(s), what)
	}
}

// route serves a known route. For the others the router's own answer gives way to one in
// our form.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if name, ok := lockName(r); ok && s.Coordination != nil {
		s.lockRoute(w, r, name)
		return
	}
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
