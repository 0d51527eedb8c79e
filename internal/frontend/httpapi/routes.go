package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
	"github.com/blackhole/blackhole/internal/frontend/ui"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

// route is one entry of the API.
type route struct {
	pattern  string      // of http.ServeMux
	role     access.Role // needed by the caller
	endpoint string      // label of metrics; empty means the path of the pattern without /v1
	waits    bool        // the client chooses the duration, so the time measures nothing
	asks     bool        // reads and checks parameters of its own; false refuses all
	serve    http.Handler
}

// table returns the routes of all planes. A server without a plane leaves its routes out.
func table(d *discoveryAPI, c *coordinationAPI, a *agentAPI, events *eventsAPI, pages Pages) []route {
	routes := append(generalRoutes(), pageAPI{pages}.routes()...)
	routes = append(routes, d.routes()...)
	if c != nil {
		routes = append(routes, c.routes()...)
	}
	if a != nil {
		routes = append(routes, a.routes()...)
	}
	routes = append(routes, events.routes()...)
	for _, t := range routes {
		if instead, parameter, ok := openapi.Named(t.path()); ok {
			routes = append(routes, t.named(instead, parameter))
		}
	}
	return routes
}

// named returns a route at another path, where a parameter of the query stands for the one of the path.
func (t route) named(instead, parameter string) route {
	as := t
	as.pattern, as.endpoint, as.asks = t.method()+" "+instead, strings.TrimPrefix(t.path(), "/v1"), true
	serve := t.checked()
	as.serve = handler(func(w http.ResponseWriter, r *http.Request) error {
		values, err := input.Query(r.URL)
		if err != nil {
			return err
		}
		name, err := input.Single(values, parameter)
		if err != nil {
			return err
		}
		if name == "" {
			return fault.Invalidf(parameter, nil, "is missing: name the object in this parameter")
		}
		values.Del(parameter)
		u, inner := *r.URL, *r
		u.RawQuery = values.Encode()
		inner.URL = &u
		inner.SetPathValue(parameter, name)
		serve.ServeHTTP(w, &inner)
		return nil
	})
	return as
}

func generalRoutes() []route {
	document := sync.OnceValue(func() []byte { return []byte(openapi.Document()) })
	return []route{
		{pattern: "GET /livez", role: access.RoleNone, serve: handler(live)},
		{pattern: "GET /openapi.json", role: access.RoleNone, serve: handler(func(w http.ResponseWriter, _ *http.Request) error {
			write(w, http.StatusOK, document())
			return nil
		})},
	}
}

// pageRoutes are the files of the page, which are the same for everybody. They are no part of the API.
func pageRoutes() []route {
	return []route{
		{pattern: "GET " + ui.Prefix, role: access.RoleNone, endpoint: "/ui", serve: ui.Handler()},
		{pattern: "GET /{$}", role: access.RoleNone, endpoint: "/", serve: http.HandlerFunc(ui.Redirect)},
	}
}

// Route is a path of another front end at this address. It is no part of the API of this package, whose server admits its requests
// and ends their contexts at Close.
type Route struct {
	Pattern string      // of http.ServeMux
	Role    access.Role // needed by the caller
	Waits   bool        // the client chooses the duration, so the time measures nothing
	Public  bool        // pages of any origin may read it, without credentials: what it says is no secret of this machine
	Handler http.Handler
	Outside func(http.Handler) http.Handler // around the guard; nil: nothing

	// Refuse tells a caller that the guard does not admit. Nil does it as this API.
	Refuse func(http.ResponseWriter, error)
}

// guarded returns a handler behind the guard. Below /.well-known/ a wrong credential counts as none: programs look
// there with whatever credential they have, to learn which one to get. Anonymous callers need the role there all the
// same.
func (c *Config) guarded(role access.Role, h http.Handler, refuse func(http.ResponseWriter, error)) http.Handler {
	if c.Guard == nil {
		return h
	}
	closed, open := c.Guard(role, h, refuse), c.Guard(access.RoleNone, handler(func(w http.ResponseWriter, r *http.Request) error {
		err := access.Check(r.Context(), access.Need{Role: role})
		if err == nil {
			h.ServeHTTP(w, r)
		}
		return err
	}), refuse)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/.well-known/") {
			open.ServeHTTP(w, r)
		} else {
			closed.ServeHTTP(w, r)
		}
	})
}

// mountOther gives the router the route of another front end.
func (s *Server) mountOther(c *Config, o Route) {
	until := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := s.shared.untilClosing(r.Context())
		defer cancel()
		o.Handler.ServeHTTP(w, r.WithContext(ctx))
	})
	h := countRequests(c.Requests, route{pattern: o.Pattern, waits: o.Waits, serve: until})
	refuse := o.Refuse
	if refuse == nil {
		refuse = writeError
	}
	h = c.guarded(o.Role, h, refuse)
	if o.Outside != nil {
		h = o.Outside(h)
	}
	s.mux.Handle(o.Pattern, h)
	if o.Public {
		s.public = append(s.public, o.Pattern)
	}
}

func (t route) method() string {
	method, _, _ := strings.Cut(t.pattern, " ")
	return method
}

func (t route) path() string {
	_, path, _ := strings.Cut(t.pattern, " ")
	return path
}

// checked returns the handler of a route of the API. It refuses the parameters that the route does not read, and tells the
// response who called.
func (t route) checked() http.Handler {
	serve := t.serve
	if !t.asks {
		serve = handler(func(w http.ResponseWriter, r *http.Request) error {
			if _, err := input.Known(r.URL); err != nil {
				return err
			}
			t.serve.ServeHTTP(w, r)
			return nil
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if resp := responseOf(w); resp != nil {
			resp.caller, resp.changes = r.Context(), t.role > access.RoleReadOnly
		}
		serve.ServeHTTP(w, r)
	})
}

// mount gives the router its routes. Paths outside the table need the role read-only, so that
// they tell strangers nothing.
func (s *Server) mount(c *Config) {
	var coordination *coordinationAPI
	if c.Coordination != nil {
		coordination = &coordinationAPI{shared: s.shared, Coordination: *c.Coordination}
	}
	var agent *agentAPI
	if c.Agent != nil {
		agent = newAgentAPI(s.shared, c)
	}
	d := newDiscoveryAPI(s.shared, c)
	s.events = &eventsAPI{shared: s.shared, planes: []string{"discovery"}, recent: c.History}
	if s.events.recent == nil {
		s.events.recent = func(time.Time) ([]discovery.Note, <-chan struct{}) { return nil, nil }
	}
	if agent != nil {
		s.events.planes = append(s.events.planes, "agent")
	}
	if coordination != nil {
		s.events.planes = append(s.events.planes, "coordination")
	}
	routes := table(d, coordination, agent, s.events, c.Pages)
	for n, t := range routes {
		routes[n].serve = t.checked()
	}
	routes = append(routes, pageRoutes()...)
	routes = append(routes, route{pattern: "/", role: access.RoleReadOnly, endpoint: "none", serve: handler(s.unknown)})
	for _, t := range routes {
		h := countRequests(c.Requests, t)
		h = c.guarded(t.role, h, writeError)
		s.mux.Handle(t.pattern, h)
	}
	for _, o := range c.Others {
		s.mountOther(c, o)
	}
}

// fieldPath is the field of errors about a path without a route.
const fieldPath = "path"

// unknown refuses a path or a method outside the table.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut} {
		as := *r
		as.Method = method
		if _, pattern := s.mux.Handler(&as); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return &fault.Error{Kind: fault.NotFound, Field: fieldPath, Value: r.URL.Path, Err: errors.New("no route has this path: see /openapi.json")}
	}
	allow := strings.Join(allowed, ", ")
	w.Header().Set("Allow", allow)
	return &fault.Error{Kind: fault.Unsupported, Field: "method", Value: r.Method, Err: errors.New("is not allowed here; use " + allow)}
}

// Requests counts requests. Requests outside the table have the endpoint "none" and the
// method "other".
type Requests interface {
	// Requested counts an answer.
	Requested(endpoint, method string, status int)
	// Took records the duration of a request. Watches and waits are excluded.
	Took(endpoint, method string, d time.Duration)
}

// countRequests wraps the handler of a route with counting.
func countRequests(requests Requests, t route) http.Handler {
	if requests == nil {
		return t.serve
	}
	endpoint, method := t.endpoint, t.method()
	endpoint = cmp.Or(endpoint, strings.TrimPrefix(t.path(), "/v1"))
	if strings.HasPrefix(method, "/") { // a catch-all pattern has no method
		method, endpoint = "other", cmp.Or(t.endpoint, strings.TrimPrefix(method, "/v1"))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		t.serve.ServeHTTP(w, r)
		if !t.waits {
			requests.Took(endpoint, method, time.Since(start))
		}
		requests.Requested(endpoint, method, max(responseOf(w).code, http.StatusOK))
	})
}

// shared holds the resources that the handlers of all planes share.
type shared struct {
	closing context.Context // done when Close begins; ends watches and waits
	watches *access.Pool
	waits   *access.Pool
	answers *access.Pool // bytes
	bodies  *access.Pool // bytes
	backups *access.Pool
	viewers *access.Pool
	buffers bufferPool
	packer  *packer
	open    bool // no guard: everybody may do everything
	fronts  Fronts
}

// untilClosing returns a context that ends with the request or when the server closes.
func (s *shared) untilClosing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closing, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// orClosing replaces the error of a watch or wait that ended because the server closes.
func (s *shared) orClosing(err error) error {
	kind := fault.KindOf(err)
	if err != nil && s.closing.Err() != nil && (kind == fault.Canceled || kind == fault.Unavailable) {
		return fault.New("httpapi", fault.Unavailable, "the peer is shutting down: retry at another peer")
	}
	return err
}
