// Package httpapi serves the discovery, coordination and agent planes to applications over
// HTTP: JSON, server-sent events for watches, health endpoints and metrics.
//
// The package only translates. A table holds the routes with their roles. The router matches a
// request once, and the guard of the route then checks the caller. All errors pass through one
// table, including errors of the router.
//
// The server answers only requests to a loopback host or to a configured host name, and refuses
// cross-origin requests of browsers: a web page must not reach the peer.
//
// The content of a body or parameter counts, not the Content-Type of the request: clients such
// as curl send the type of a form by default.
package httpapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of the server.
const (
	readHeader  = 5 * time.Second
	readRequest = 30 * time.Second
	idle        = 60 * time.Second
	writeAnswer = 30 * time.Second // from the first byte of an answer; in a watch, for one event
	maxHeader   = 16 << 10
	maxBody     = 64 << 10 // one record or one query
	maxBatch    = 32 << 20 // discovery.MaxBatch records of 3 KiB
	maxOpen     = 1024     // default of Config.MaxWatches and Config.MaxWaits
)

// Config holds the parts of a Server. Registrar, Finder, Node and Metrics are required.
type Config struct {
	Registrar  discovery.Registrar
	Finder     discovery.Finder
	Node       discovery.Node
	Metrics    http.Handler // answers /v1/metrics
	Logger     *slog.Logger // nil disables logging
	MaxWatches int          // open at a time; zero means 1024
	MaxWaits   int          // requests waiting for requirements at a time; zero means 1024

	Coordination *Coordination          // nil disables the coordination plane
	Agent        *Agent                 // nil disables the agent plane
	Trade        api.TradeServiceServer // nil disables trade
	Pages        Pages                  // nil: nobody signs in to the page
	// SetLogLevel changes the level of the log until the peer stops. Errors: Invalid for an unknown level. Nil: it is fixed.
	SetLogLevel func(level string) (previous string, err error)

	Fronts Fronts // the peer's other front ends, for the commands that the page prints
	// History returns the notes after a time, at most of the last hour, and a channel that the next note closes. Nil: this
	// peer remembers nothing.
	History func(after time.Time) ([]discovery.Note, <-chan struct{})

	Others []Route // of other front ends at this address

	Hosts []string // host names, without port, allowed in requests besides loopback

	// Guard wraps the handler of a route and admits only callers with the role of the route; refuse tells the others.
	// Nil admits everybody.
	Guard func(role access.Role, next http.Handler, refuse func(http.ResponseWriter, error)) http.Handler
	// Limit runs before each registration of an instance. Nil means no limit.
	Limit func(context.Context) error
	// May checks that the caller may change a service, given as namespace/name. Nil allows everybody.
	May func(ctx context.Context, service string) error
	// Refused hears of each place of a pool that a caller did not get, and must not block. Nil ignores them.
	Refused func(access.Refusal)
	// Answers bounds the bytes of answers that clients have not taken yet. Nil: they have no bound.
	Answers *access.Pool
	// Bodies bounds the bytes of requests. Nil: they have no bound.
	Bodies *access.Pool
	// Requests counts requests. Nil disables counting.
	Requests Requests
	// Trace begins the span of a request of the API. The returned function ends it, with the pattern of the route and the
	// status. Nil traces nothing.
	Trace func(*http.Request) (_ *http.Request, end func(route string, status int))

	// ConnContext extends the context of a connection, as http.Server.ConnContext does. Nil adds nothing.
	ConnContext func(ctx context.Context, c net.Conn) context.Context
}

// Fronts are the other front ends of a peer, as its settings name them.
type Fronts struct {
	GRPC string `json:"grpc"` // IP:port, or off
	DNS  string `json:"dns"`  // IP:port, or off
	Zone string `json:"zone"` // first zone of the name server
}

// Server is the HTTP front end.
type Server struct {
	hosts       hostNames
	log         *slog.Logger
	connContext func(ctx context.Context, c net.Conn) context.Context
	mux         *http.ServeMux // all routes, and "/" for all other paths
	public      []string       // patterns that pages of any origin may read
	http        *http.Server
	shared      *shared
	events      *eventsAPI
	trace       func(*http.Request) (*http.Request, func(route string, status int))
	close       context.CancelFunc // ends shared.closing
}

// New makes a server. Serve starts it.
func New(c Config) *Server {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.MaxWatches = cmp.Or(c.MaxWatches, maxOpen)
	c.MaxWaits = cmp.Or(c.MaxWaits, maxOpen)
	s := &Server{hosts: c.Hosts, log: c.Logger, connContext: c.ConnContext, trace: c.Trace, mux: http.NewServeMux()}
	s.shared = &shared{
		watches: access.NewPool("watches", c.MaxWatches, c.Refused), waits: access.NewPool("waits", c.MaxWaits, c.Refused),
		backups: access.NewPool("backups", maxBackups, c.Refused),
		viewers: access.NewPool("viewers", maxViewers, c.Refused), packer: newPacker(), open: c.Guard == nil,
		answers: c.Answers, bodies: c.Bodies, fronts: c.Fronts,
	}
	s.shared.closing, s.close = context.WithCancel(context.Background())
	s.mount(&c)
	s.http = &http.Server{
		Handler:           s.Handler(),
		ConnContext:       s.withConn,
		ReadHeaderTimeout: readHeader, ReadTimeout: readRequest, IdleTimeout: idle, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Handler returns the whole server as a handler, guards included.
func (s *Server) Handler() http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp := &response{ResponseWriter: w, conn: connOf(r), answers: s.shared.answers, requests: s.shared.bodies, caller: r.Context()}
		defer resp.over()
		if acceptsGzip(r.Header) {
			resp.packer = s.shared.packer
		}
		defer s.recovered(resp, r)
		whole := &wholeRequest{r: r}
		defer whole.over()
		if err := whole.admit(w); err != nil {
			writeError(resp, err)
			return
		}
		if err := s.admit(r, origin); err != nil {
			writeError(resp, err)
			return
		}
		if s.isPublic(r) {
			resp.Header().Set("Access-Control-Allow-Origin", "*")
		}
		s.route(resp, slashNamed(r))
	})
}

// slashNamed leads a request for the object "/" to the path where a parameter names it: http.ServeMux takes the
// segment %2F for the end of a path.
func slashNamed(r *http.Request) *http.Request {
	before, after, found := strings.Cut(strings.Replace(r.URL.EscapedPath(), "/%2f", "/%2F", 1), "/%2F")
	if !found || after != "" && after[0] != '/' {
		return r
	}
	for _, parameter := range []string{"key", "name", "id"} {
		if instead, _, ok := openapi.Named(before + "/{" + parameter + "}" + after); ok {
			to, u := *r, *r.URL
			u.Path, u.RawPath, u.RawQuery = instead, "", strings.TrimSuffix(parameter+"=%2F&"+u.RawQuery, "&")
			to.URL = &u
			return &to
		}
	}
	return r
}

// route serves an admitted request. Probes and the files of the page are in no trace.
func (s *Server) route(w *response, r *http.Request) {
	if s.trace == nil || !strings.HasPrefix(r.URL.Path, "/v1/") || slices.Contains(untraced(), r.URL.Path) {
		s.mux.ServeHTTP(w, r)
		return
	}
	r, end := s.trace(r)
	defer func() { end(r.Pattern, max(w.code, http.StatusOK)) }()
	s.mux.ServeHTTP(w, r)
}

// untraced lists what machines ask again and again.
func untraced() []string { return []string{"/v1/health", "/v1/metrics", "/v1/status"} }

// Serve answers on l until Close and takes ownership of l. It supports several listeners,
// including TLS listeners.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(conns{l}); !errors.Is(err, http.ErrServerClosed) {
		return fault.As("httpapi.Serve", fault.Internal, err)
	}
	return nil
}

// Close ends watches at once and other requests after a short grace period.
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

// ServeHTTP implements http.Handler.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		writeError(w, cmp.Or(access.Revoked(r.Context()), err))
	}
}

// response records the start of an answer and bounds the time for writing it.
type response struct {
	http.ResponseWriter
	conn   *conn   // nil for connections that cannot hold writes back
	packer *packer // nil for a client that does not read gzip
	begun  bool
	code   int // status; zero before the answer has begun

	answers  *access.Pool
	requests *access.Pool
	held     func()          // ends the room of the request; nil: it has none
	caller   context.Context // of the request, with what a guard found out about it
	changes  bool            // the answer tells of a change that was made
}

// over ends the room of the request.
func (r *response) over() {
	if r.held != nil {
		r.held()
	}
}

// responseOf finds the response below the writers of guards; nil for writers of tests.
func responseOf(w http.ResponseWriter) *response {
	for {
		switch as := w.(type) {
		case *response:
			return as
		case interface{ Unwrap() http.ResponseWriter }:
			w = as.Unwrap()
		default:
			return nil
		}
	}
}

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(code int) {
	r.begin(code)
	r.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (r *response) Write(p []byte) (int, error) {
	r.begin(http.StatusOK)
	return r.ResponseWriter.Write(p)
}

// Unwrap supports http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *response) begin(code int) {
	if !r.begun {
		r.begun, r.code = true, code
		// Some writers of tests have no deadlines.
		_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(writeAnswer))
	}
}

// recovered turns a panic into an error: one bad request must not end the daemon. It cuts off
// an answer that has begun, so that no client takes the answer for complete.
func (s *Server) recovered(w *response, r *http.Request) {
	p := recover()
	switch p {
	case nil:
		return
	case http.ErrAbortHandler: // a handler cuts its answer off
		panic(p)
	}
	s.log.Error("a request caused a panic", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	if w.begun {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	writeError(w, fault.New("httpapi", fault.Internal, "internal error: see the log of the peer"))
}

// admit refuses three kinds of requests before routing:
//   - to a host that is neither loopback nor configured, such as a rebound DNS name. Probes of orchestrators and load
//     balancers name the address of their target, or nothing: they are answered without a word about the peer;
//   - from a page of another origin. Reading counts too: it costs lookups, and the browser
//     would only hide the answer;
//   - with a path that is not clean. The router would redirect it, for example from the lock
//     "a/../b" to the lock "b".
func (s *Server) admit(r *http.Request, origin *http.CrossOriginProtection) error {
	if !isProbe(r) && !s.hosts.serve(r) {
		return &fault.Error{
			Op: "httpapi", Kind: fault.Forbidden, Field: "host", Value: r.Host,
			Err: errors.New("is not a name of this server: use localhost, or add the name to the configured hosts"),
		}
	}
	as := *r
	as.Method = http.MethodPost // Check would let safe methods pass
	if err := origin.Check(&as); err != nil && !s.isPublic(r) {
		return fault.New("httpapi", fault.Forbidden, "cross-origin requests are refused: call the API from the same origin or outside a browser")
	}
	if escaped := r.URL.EscapedPath(); r.Method != http.MethodConnect && !isClean(escaped) {
		return &fault.Error{Kind: fault.NotFound, Field: "path", Value: r.URL.Path, Err: errors.New("has empty or dot segments: percent-encode slashes and dots in names")}
	}
	return nil
}

// isPublic reports whether any page may read the answer of a request.
func (s *Server) isPublic(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Authorization") != "" || len(s.public) == 0 {
		return false
	}
	_, pattern := s.mux.Handler(r)
	return slices.Contains(s.public, pattern)
}

// hostNames are the names of this server besides those of loopback.
type hostNames []string

// serve reports whether a request names this server.
// A unix socket names it by itself: no page of a browser reaches one.
func (n hostNames) serve(r *http.Request) bool {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && at.Network() == "unix" {
		return true
	}
	host := hostOf(r)
	return isLoopback(host) || slices.ContainsFunc(n, func(name string) bool { return strings.EqualFold(name, host) })
}

func isProbe(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && (r.URL.Path == "/livez" || r.URL.Path == "/readyz")
}

// isClean reports whether the router takes a path as it is.
func isClean(escaped string) bool {
	clean := path.Clean(escaped)
	return escaped == clean || strings.HasPrefix(escaped, "/") && len(escaped) == len(clean)+1 && escaped[len(clean)] == '/'
}

// hostOf returns the host of a request without port and brackets.
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

// isLoopback knows the names of RFC 6761, section 6.3.
func isLoopback(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || net.ParseIP(host).IsLoopback()
}
