package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/pkg/fault"
)

// The roles that routes take, as package access names them.
const (
	anyone   = "none"      // who is not known too
	reader   = "read-only" // who may ask
	member   = "service"   // who may change what is of its services
	operator = "admin"     // who may change what is of the peer
)

// route is one entry of the API.
type route struct {
	pattern  string // of http.ServeMux
	role     string // that the caller needs
	endpoint string // label of metrics; "": the path of the pattern without /v1
	waits    bool   // for as long as the client likes: its time tells nothing
	serve    func(*Server) http.Handler
}

// table is the whole API of this front end; what is served depends on the Config.
func table() []route {
	routes := append(discoveryRoutes(), coordinationRoutes()...)
	return append(routes, agentRoutes()...)
}

// discoveryRoutes are those that every server has.
func discoveryRoutes() []route {
	return []route{
		{pattern: "POST /v1/discovery/records", role: operator, serve: plain((*Server).register)},
		{pattern: "POST /v1/discovery/records:batch", role: operator, serve: plain((*Server).registerBatch)},
		{pattern: "GET /v1/discovery/records", role: reader, serve: plain((*Server).list)},
		{pattern: "GET /v1/discovery/records/{id}", role: reader, serve: plain((*Server).get)},
		{pattern: "PUT /v1/discovery/records/{id}", role: operator, serve: plain((*Server).update)},
		{pattern: "DELETE /v1/discovery/records/{id}", role: operator, serve: plain((*Server).withdraw)},
		{pattern: "GET /v1/discovery/resolve", role: reader, serve: plain((*Server).resolve)},
		{pattern: "POST /v1/discovery/query", role: reader, serve: plain((*Server).query)},
		{pattern: "GET /v1/discovery/query", role: reader, serve: plain((*Server).queryByParameters)},
		{pattern: "GET /v1/discovery/watch", role: reader, waits: true, serve: plain((*Server).watch)},
		{pattern: "GET /v1/status", role: reader, serve: plain((*Server).status)},
		{pattern: "GET /v1/peers", role: reader, serve: plain((*Server).peers)},
		{pattern: "GET /v1/health", role: anyone, serve: plain((*Server).health)},
		{pattern: "GET /v1/metrics", role: reader, serve: func(s *Server) http.Handler { return s.Metrics }},
		{pattern: "GET /livez", role: anyone, serve: plain((*Server).live)},
		{pattern: "GET /readyz", role: anyone, serve: plain((*Server).ready)},
		{pattern: "GET /openapi.json", role: anyone, serve: plain((*Server).openAPI)},
	}
}

// coordinationRoutes are the API of the coordination plane. Those of single locks are served
// beside the router: see lockRoute.
func coordinationRoutes() []route {
	return []route{
		{pattern: "POST /v1/coordination/leases", role: member, serve: planed((*Server).grantLease)},
		{pattern: "GET /v1/coordination/leases", role: reader, serve: planed((*Server).listLeases)},
		{pattern: "GET /v1/coordination/leases/{id}", role: reader, serve: planed((*Server).getLease)},
		{pattern: "DELETE /v1/coordination/leases/{id}", role: member, serve: planed((*Server).revokeLease)},
		{pattern: "PUT /v1/coordination/leases/{id}/keepalive", role: member, serve: planed((*Server).keepLease)},
		{pattern: "GET /v1/coordination/locks", role: reader, serve: planed((*Server).listLocks)},
		{pattern: "POST /v1/coordination/locks/{name...}", role: member, waits: true, serve: lockRoutes},
		{pattern: "GET /v1/coordination/locks/{name...}", role: reader, serve: lockRoutes},
		{pattern: "DELETE /v1/coordination/locks/{name...}", role: member, serve: lockRoutes},
		{pattern: "GET /v1/coordination/requirements", role: reader, serve: planed((*Server).listRequirements)},
		{pattern: "GET /v1/coordination/requirements/{id}", role: reader, waits: true, serve: planed((*Server).getRequirement)},
		{pattern: "PUT /v1/coordination/requirements/{id}", role: member, serve: planed((*Server).setRequirement)},
		{pattern: "DELETE /v1/coordination/requirements/{id}", role: member, serve: planed((*Server).deleteRequirement)},
		{pattern: "GET /v1/coordination/watch", role: reader, waits: true, serve: planed((*Server).watchKeys)},
		{pattern: "GET /v1/coordination/group", role: reader, serve: planed((*Server).group)},
	}
}

// agentRoutes are both dialects of the agent plane. They share paths: "instances" and "watch" are
// no ids of instances.
func agentRoutes() []route {
	return []route{
		// The low-level design "Service Discovery".
		{pattern: "POST /v1/services/{service}/instances", role: member, serve: plain((*Server).registerInstance)},
		{pattern: "GET /v1/services/{service}/instances", role: reader, serve: plain((*Server).listInstances)},
		{pattern: "GET /v1/services/{service}/instances/{id}", role: reader, serve: plain((*Server).getInstance)},
		{pattern: "DELETE /v1/services/{service}/instances/{id}", role: member, serve: plain((*Server).deregister)},
		{pattern: "PUT /v1/services/{service}/instances/{id}/status", role: member, serve: plain((*Server).setStatus)},
		{pattern: "GET /v1/services/{service}/watch", role: reader, waits: true, serve: plain((*Server).watchInstances)},
		{pattern: "PUT /v1/leases/{lease}/renew", role: member, serve: plain((*Server).renewLease)},
		// The SAP-044 Registry.
		{pattern: "POST /v1/services", role: member, serve: named((*Server).registerService)},
		{pattern: "GET /v1/services", role: reader, serve: named((*Server).listServices)},
		{pattern: "GET /v1/services/{service}", role: reader, serve: named((*Server).getServices)},
		{pattern: "GET /v1/services/{service}/{id}", role: reader, serve: named((*Server).getService)},
		{pattern: "DELETE /v1/services/{service}/{id}", role: member, serve: named((*Server).deregister)},
		{pattern: "PUT /v1/services/{service}/{id}/heartbeat", role: member, endpoint: "/heartbeat", serve: named((*Server).heartbeat)},
		// Prometheus.
		{pattern: "GET /v1/prometheus/sd", role: reader, serve: plain((*Server).prometheusTargets)},
	}
}

// path is the pattern without its method.
func (t route) path() string {
	_, path, _ := strings.Cut(t.pattern, " ")
	return path
}

// method is that of the pattern.
func (t route) method() string {
	method, _, _ := strings.Cut(t.pattern, " ")
	return method
}

// plain makes a method that returns its error a handler.
func plain(h func(*Server, http.ResponseWriter, *http.Request) error) func(*Server) http.Handler {
	return func(s *Server) http.Handler {
		return handler(func(w http.ResponseWriter, r *http.Request) error { return h(s, w, r) })
	}
}

// planed is plain for the coordination plane.
func planed(h func(*Server, context.Context, call) error) func(*Server) http.Handler {
	return func(s *Server) http.Handler {
		return s.plane(func(ctx context.Context, c call) error { return h(s, ctx, c) })
	}
}

// lockRoutes serves single locks, whatever the method.
func lockRoutes(s *Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _ := lockName(r)
		s.lockRoute(w, r, name)
	})
}

// isLock reports whether a route is one of single locks.
func (t route) isLock() bool { return strings.HasSuffix(t.pattern, "/{name...}") }

// methodOf is that of a request as the table has it.
func methodOf(r *http.Request) string {
	if r.Method == http.MethodHead {
		return http.MethodGet
	}
	return r.Method
}

// served tells whether the Config has what a route needs.
func (s *Server) served(t route) bool {
	switch path := t.path(); {
	case strings.HasPrefix(path, "/v1/coordination/"):
		return s.Coordination != nil
	case strings.HasPrefix(path, "/v1/services"), strings.HasPrefix(path, "/v1/leases/"), strings.HasPrefix(path, "/v1/prometheus/"):
		return s.Agent != nil
	default:
		return true
	}
}

// mount gives the routers their routes.
func (s *Server) mount() {
	for _, t := range table() {
		if !s.served(t) {
			continue
		}
		h := s.counted(t, t.serve(s))
		s.known.Handle(t.pattern, h)
		s.mux.Handle(t.pattern, h)
		if t.isLock() {
			s.lockHandlers[t.method()] = h
		}
	}
	none := route{pattern: " ", endpoint: "none"}
	s.mux.Handle("/", s.counted(none, http.HandlerFunc(s.unknown)))
	s.lockHandlers[""] = s.counted(none, lockRoutes(s)) // of other methods
}

// route serves a request. Those of single locks pass by the router, which would clean their
// names, to the handlers that it would give them.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if _, ok := lockName(r); ok && s.Coordination != nil {
		h := s.lockHandlers[methodOf(r)]
		if h == nil {
			h = s.lockHandlers[""]
		}
		h.ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// unknown answers what is no route: where the router has an answer of its own, it gives way to
// one in our form.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	h, _ := s.known.Handler(r)
	probe := &discard{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); allow != "" {
		writeNotAllowed(w, r, allow)
		return
	}
	writeError(w, &fault.Error{Kind: fault.NotFound, Field: "path", Value: r.URL.Path, Err: errors.New("is no route of this API")})
}

func writeNotAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	writeError(w, &fault.Error{
		Kind: fault.Unsupported, Field: "method", Value: r.Method, Err: errors.New("is not allowed here; use " + allow),
	})
}

// discard is a response that only its header is wanted of.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

// Requests counts what is asked. Endpoints and methods are those of the table, or "none" and
// "other".
type Requests interface {
	// Requested counts an answer.
	Requested(endpoint, method string, status int)
	// Took measures how long it took, unless it waited for a client's sake.
	Took(endpoint, method string, d time.Duration)
}

// counted makes the handler of a route count.
func (s *Server) counted(t route, next http.Handler) http.Handler {
	if s.Requests == nil {
		return next
	}
	endpoint := t.endpoint
	if endpoint == "" {
		endpoint = strings.TrimPrefix(t.path(), "/v1")
	}
	method := t.method()
	if method == "" {
		method = "other"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, ok := w.(*response)
		if !ok { // a guard has put something of its own in front
			resp = &response{ResponseWriter: w, conn: connOf(r)}
		}
		start := time.Now()
		next.ServeHTTP(resp, r)
		if !t.waits {
			s.Requests.Took(endpoint, method, time.Since(start))
		}
		s.Requests.Requested(endpoint, method, max(resp.code, http.StatusOK))
	})
}

// Needs gives a function that tells the role that a request needs, "none", "read-only",
// "service" or "admin", and the service, namespace/name, that it is to be allowed to change: ""
// where none is, or only the body tells, of which Config.May is asked. What is no route needs
// read-only.
func Needs() func(*http.Request) (role, service string) {
	mux := http.NewServeMux()
	roles := make(map[string]string) // by pattern; of locks also by method
	for _, t := range table() {
		mux.Handle(t.pattern, http.NotFoundHandler())
		roles[t.pattern] = t.role
		if t.isLock() {
			roles[t.method()] = t.role
		}
	}
	return func(r *http.Request) (role, service string) {
		_, pattern := mux.Handler(r)
		if _, ok := lockName(r); ok {
			pattern = methodOf(r)
		}
		role, ok := roles[pattern]
		if !ok {
			return reader, ""
		}
		rest, ok := strings.CutPrefix(r.URL.Path, "/v1/services/")
		if !ok || role != member || r.Method == http.MethodPost {
			return role, ""
		}
		service, _, _ = strings.Cut(rest, "/")
		return role, dialect.Namespace(r.URL.Query()) + "/" + service
	}
}
