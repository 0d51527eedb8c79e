// Package httpapi serves the discovery, the coordination and the agent plane to applications
// over HTTP: JSON, server-sent events for watches, health endpoints and metrics.
//
// It translates and nothing else. All routes stand in one table, with the role that each
// takes. Every error, those of the router included, has one form and passes through one table.
// The server answers only requests that name a loopback host, or one that it was given, and no
// cross-origin request of a browser: a web page must not reach the peer.
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
	"slices"
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
	Agent        *Agent        // nil: not served

	Hosts    []string                                        // names, without port, that requests may have beside those of loopback
	Guard    func(http.Handler) http.Handler                 // looks at who calls before a request is routed; nil: nobody does
	Limit    func(*http.Request) error                       // asked before each registration of an instance; nil: none
	May      func(ctx context.Context, service string) error // whether the caller may act for a service, namespace/name; nil: everybody
	Requests Requests                                        // counts requests; nil: nobody

	// ConnContext adds to the context of a connection, as that of http.Server; nil: nothing.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
}

// Server is the HTTP front end.
type Server struct {
	Config
	mux          *http.ServeMux          // all routes, and below them what is none
	known        *http.ServeMux          // all routes
	lockHandlers map[string]http.Handler // of single locks, by method; "": of all others
	http         *http.Server
	watches      slots
	waits        slots
	batches      slots
	buffers      sync.Pool // of *[]byte, for answers

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
		Config: c, mux: http.NewServeMux(), known: http.NewServeMux(), lockHandlers: make(map[string]http.Handler),
		watches: make(slots, c.MaxWatches), waits: make(slots, c.MaxWaits), batches: make(slots, maxBatches),
	}
	s.closing, s.close = context.WithCancel(context.Background())
	s.mount()
	s.http = &http.Server{
		Handler:           s.Handler(),
		ConnContext:       s.withConn,
		ReadHeaderTimeout: readHeader, ReadTimeout: readRequest, IdleTimeout: idle, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Handler is the whole server as a handler, guards included.
func (s *Server) Handler() http.Handler {
	origin := http.NewCrossOriginProtection()
	routes := http.Handler(http.HandlerFunc(s.route))
	if s.Guard != nil {
		routes = s.Guard(routes)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp := &response{ResponseWriter: w, conn: connOf(r)}
		defer s.recovered(resp, r)
		if err := s.admit(r, origin); err != nil {
			writeError(resp, err)
			return
		}
		routes.ServeHTTP(resp, r)
	})
}

// Serve answers on l until Close; it takes l over. It may be called for several listeners, those of
// crypto/tls too.
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
	code  int // of the answer, once it has begun
}

// WriteHeader begins the answer.
func (r *response) WriteHeader(code int) {
	r.begin(code)
	r.ResponseWriter.WriteHeader(code)
}

// Write begins the answer if need be.
func (r *response) Write(p []byte) (int, error) {
	r.begin(http.StatusOK)
	return r.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *response) begin(code int) {
	if !r.begun {
		r.begun, r.code = true, code
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

// admit lets only requests in that name a loopback host or one of Hosts, which a rebound DNS
// name is not, and that no page of another origin makes. Reading counts too: it costs lookups,
// and the browser would hide only the answer.
func (s *Server) admit(r *http.Request, origin *http.CrossOriginProtection) error {
	if host := hostOf(r); !isLoopback(host) && !slices.ContainsFunc(s.Hosts, func(name string) bool { return strings.EqualFold(name, host) }) {
		return &fault.Error{Op: "httpapi", Kind: fault.Forbidden, Field: "host", Value: r.Host, Err: errors.New("is no host that this server is known by")}
	}
	as := *r
	as.Method = http.MethodPost // of others, Check lets the safe methods pass
	if err := origin.Check(&as); err != nil {
		return fault.New("httpapi", fault.Forbidden, "cross-origin requests are refused")
	}
	return nil
}

// hostOf is the host that a request names, without port and brackets.
func hostOf(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		return host[1 : len(host)-1]
	}
	return host
}

func isLoopback(host string) bool {
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
