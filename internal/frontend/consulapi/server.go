// Package consulapi is the front end for clients of Consul's HTTP API, at the address of package httpapi.
//
// Keys stand in the group under a prefix, as they are. What Consul keeps beside a value has keys of its own, after a zero byte, which no key of a
// client has:
//
//	K          the value; under the session's lease with behavior delete
//	K\0held    the session that holds the key, under its lease: the end of the session releases the key without further work
//	K\0meta    flags, lock index and the session that was told to hold the key; absent when all are empty
//	K\0slow    under a lease that outlives the session's by its lock delay: while it exists, nobody acquires a key without holder
//
// A change of one key is one transaction, which fails if one of these four has changed since it was read. A session is
// a lease, see sessionID.
package consulapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Front is the name of this front in owners of leases; see authority.Config.
const Front = "consul"

// Datacenter is the only one. A request may name it.
const Datacenter = "dc1"

// Version is the version of Consul whose API this is. Clients read it.
const Version = "1.22.0"

// Bounds of the front.
const (
	maxWatches   = 1024             // blocking queries at a time
	maxBody      = 64 << 10         // of a request without a value
	maxValue     = 512 << 10        // of one key, as in Consul
	maxTxn       = 6 << 20          // body of a transaction
	maxAnswer    = 64 << 20         // keys and values of one answer
	pageBytes    = 3 << 20          // a page of the group: 2 MiB and a last value
	singleBytes  = 1 << 20          // one key of the group
	keptBytes    = 1 << 20          // of entries between reading and writing; more are read again, page by page
	entryBytes   = 256              // of an entry besides key and value
	pieceBytes   = 64 << 10         // of a list, after which a part goes out
	patience     = 2 * time.Second  // of a reader until others have read
	answerWithin = 10 * time.Second // of the group, besides the wait of a blocking query
	defaultWait  = 5 * time.Minute
	maxWait      = 10 * time.Minute
)

//lint:ignore ST1005 the words are Consul's
var errDatacenter = errors.New("No path to datacenter")

// Config holds the parts of a Server.
type Config struct {
	// Service is the coordination plane behind the rights of the callers of this front; required.
	Service coord.Service
	// Owner returns the owner that a caller acts as; required.
	Owner func(context.Context) (string, error)
	// Plane is the plane without these rights, which renews the sessions of this peer; required.
	Plane coord.Service
	// Group returns what this peer knows of the group; required.
	Group func(context.Context) (coord.GroupState, error)
	// Led reports whether this peer knows a leader now, without a question to another peer: each answer says it. Required.
	Led func() bool
	// Peer is the id of this peer, and the name of its node.
	Peer string
	// Prefix of all keys; not empty.
	Prefix string
	Logger *slog.Logger // nil disables logging
	Agent  *Agent       // nil disables the agent plane

	Metrics http.Handler // of this peer, as text; nil: none

	// Failed hears why the periodic work of the front failed by a fault of this program or of what it kept, and nil when
	// all works again. It must not block. Nil ignores it.
	Failed func(error)
	// Refused hears of each place of a pool that a caller did not get, and must not block. Nil ignores them.
	Refused func(access.Refusal)
	// Answers bounds the bytes of answers that clients have not taken yet. Nil: they have no bound.
	Answers *access.Pool
	// Bodies bounds the bytes of requests. Nil: they have no bound.
	Bodies *access.Pool
}

// Server is the front end for clients of Consul. Run keeps its sessions.
type Server struct {
	Config
	watches *access.Pool
	lasting lasting
	agent   *agentAPI // nil: off

	panicked atomic.Bool
	mu       sync.Mutex       // guards faults
	faults   map[string]error // of jobs whose last round failed by a fault
}

// New makes a server. Errors: Invalid for a prefix with keys of the group itself.
func New(c Config) (*Server, error) {
	if err := authority.CheckPrefix("consul.prefix", c.Prefix); err != nil {
		return nil, fault.Wrap("consulapi.New", err)
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	s := &Server{Config: c, watches: access.NewPool("watches", maxWatches, c.Refused), faults: map[string]error{}}
	s.lasting.plane, s.lasting.peer = c.Plane, c.Peer
	if c.Agent != nil {
		s.agent = newAgent(s)
	}
	return s, nil
}

// Run does the periodic work of the front until the context ends. No job waits for another one.
func (s *Server) Run(ctx context.Context) {
	var jobs sync.WaitGroup
	every := func(pace time.Duration, name string, job func(context.Context) error) {
		jobs.Go(func() {
			for n := 0; n == 0 || pause.For(ctx, pace); n++ {
				s.round(ctx, name, job)
			}
		})
	}
	every(renewEvery, "sessions", s.lasting.renew)
	if s.agent != nil {
		every(renewEvery, "services", s.agent.attend)
		every(time.Second, "checks", s.agent.expire)
	}
	jobs.Wait()
}

// errFault is the error of work that a fault of this program ended, or of something kept that does not pass.
var errFault = errors.New("fault")

// round runs a job once. A panic loses the round, not the daemon; the first one is logged.
func (s *Server) round(ctx context.Context, name string, job func(context.Context) error) {
	err := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				what, _, _ := strings.Cut(fmt.Sprint(p), "\n")
				err = fmt.Errorf("%w: a panic in the work for %s, see the log: %s", errFault, name, what)
				if !s.panicked.Swap(true) {
					s.Logger.Error("periodic work for clients of Consul caused a panic; it goes on, and later panics are not logged", "work", name, "panic", p, "stack", string(debug.Stack()))
				}
			}
		}()
		return job(ctx)
	}()
	if err != nil && ctx.Err() == nil {
		s.Logger.Debug("periodic work for clients of Consul failed, and is repeated", "work", name, "error", err)
	}
	if !errors.Is(err, errFault) {
		err = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.faults[name]; before == nil && err == nil || s.Failed == nil {
		return
	}
	if s.faults[name] = err; err == nil {
		delete(s.faults, name)
		for _, other := range s.faults {
			err = other
		}
	}
	s.Failed(err)
}

// together calls f for all items, some at a time, so that a slow one does not delay all others. If a
// call panicked, it panics when all have ended.
func together[T any](items iter.Seq[T], f func(T)) {
	var running sync.WaitGroup
	var caught atomic.Pointer[string]
	free := make(chan struct{}, 8)
	for item := range items {
		free <- struct{}{}
		running.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					text := fmt.Sprintf("%v\n%s", p, debug.Stack())
					caught.Store(&text)
				}
				<-free
			}()
			f(item)
		})
	}
	running.Wait()
	if text := caught.Load(); text != nil {
		panic(*text)
	}
}

// Routes returns the paths of the front. What is left of Consul's paths answers 404, or 405 for another method, with
// the headers that clients read.
func (s *Server) Routes() []httpapi.Route {
	read, write := access.RoleReadOnly, access.RoleService
	routes := []httpapi.Route{
		s.route("GET /v1/kv/{key...}", read, s.getKey, "index", "wait", "recurse", "raw", "keys", "separator"),
		s.route("PUT /v1/kv/{key...}", write, s.putKey, "flags", "cas", "acquire", "release"),
		s.route("DELETE /v1/kv/{key...}", write, s.deleteKey, "cas", "recurse"),
		s.route("PUT /v1/session/create", write, s.createSession),
		s.route("PUT /v1/session/destroy/{id}", write, s.destroySession),
		s.route("PUT /v1/session/renew/{id}", write, s.renewSession),
		s.route("GET /v1/session/info/{id}", read, s.sessionInfo),
		s.route("GET /v1/session/list", read, s.listSessions),
		s.route("GET /v1/session/node/{node}", read, s.listSessions),
		s.route("GET /v1/status/leader", read, s.leader),
		s.route("GET /v1/status/peers", read, s.peers),
		s.route("PUT /v1/txn", write, s.txn),
	}
	if s.agent != nil {
		routes = append(routes, slices.Concat(s.agent.routes(), s.agent.nodeRoutes(), s.agent.catalogRoutes())...)
	}
	served := http.NewServeMux()
	for _, r := range routes {
		served.Handle(r.Pattern, r.Handler)
	}
	absent := s.handler(func(r *request) error {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
			if _, path := served.Handler(&http.Request{Method: method, Host: r.Host, URL: r.URL}); path != "" {
				r.w.Header().Add("Allow", method)
			}
		}
		if r.w.Header().Get("Allow") == "" {
			return fault.New("", fault.NotFound, "this peer does not have this path of Consul's API")
		}
		s.header(r, 1)
		s.write(r, http.StatusMethodNotAllowed, "text/plain; charset=utf-8", []byte("method "+r.Method+" not allowed"))
		return nil
	})
	for _, rest := range []string{
		"acl/", "agent/", "catalog/", "config", "config/", "connect/", "coordinate/", "event/", "health/", "internal/", "kv/", "operator/", "query", "query/", "session/",
		"snapshot", "status/", "txn",
	} {
		routes = append(routes, httpapi.Route{
			Pattern: "/v1/" + rest, Role: read, Handler: absent, Outside: tokenOf, Refuse: refuse,
		})
	}
	return routes
}

// handler answers requests by a function, or the error that it returns.
func (s *Server) handler(serve func(*request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		r := &request{Request: hr, w: w, values: hr.URL.Query(), room: s.Answers.Growing("consulapi")}
		defer r.giveBack()
		if err := serve(r); err != nil {
			s.fail(r, cmp.Or(access.Revoked(r.Context()), err))
		}
	})
}

// route makes a route whose handler reads some parameters besides the common ones.
func (s *Server) route(
	pattern string, role access.Role, serve func(*request) error, parameters ...string,
) httpapi.Route {
	waits := slices.Contains(parameters, "index")
	h := s.handler(func(r *request) error {
		if err := r.read(parameters); err != nil {
			return err
		}
		if later := r.values.Get("index"); r.Method == http.MethodGet && !waits && later != "" && later != "0" {
			pause.For(r.Context(), time.Second) // a blocking query may end at any time: its client asks again at once
		}
		return serve(r)
	})
	return httpapi.Route{Pattern: pattern, Role: role, Waits: waits, Handler: h, Outside: tokenOf, Refuse: refuse}
}

// refuse answers a caller that is not admitted, before there is a request of this front. Consul itself has no 401.
func refuse(w http.ResponseWriter, err error) {
	h := w.Header()
	code, text := told(err, strings.Contains(h.Get("WWW-Authenticate"), "invalid_token"))
	h.Del("WWW-Authenticate")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, clean.Message(text)) // a failure is the client's loss
}

// tokenOf takes the token of a client of Consul for a bearer token.
func tokenOf(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token := cmp.Or(r.URL.Query().Get("token"), r.Header.Get("X-Consul-Token")); token != "" {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+token)
		}
		next.ServeHTTP(w, r)
	})
}

// fail answers an error in plain text, as Consul does.
func (s *Server) fail(r *request, err error) {
	code, text := told(err, r.Header.Get("Authorization") != "")
	s.header(r, 1)
	s.write(r, code, "text/plain; charset=utf-8", []byte(clean.Message(text)))
}

// told returns what a client is told of an error.
func told(err error, token bool) (code int, text string) {
	code, text = http.StatusInternalServerError, fault.Message(err)
	switch fault.KindOf(err) {
	case fault.Invalid, fault.Unprocessable:
		code = http.StatusBadRequest
	case fault.NotFound, fault.Gone:
		code = http.StatusNotFound
	case fault.Unauthentic, fault.Forbidden:
		code, text = http.StatusForbidden, "Permission denied: "+text
		if token && fault.KindOf(err) == fault.Unauthentic { // nobody has it: clients compare these words
			return code, "ACL not found"
		}
	case fault.TooLarge:
		code = http.StatusRequestEntityTooLarge
	case fault.LimitReached, fault.PoolExhausted:
		code = http.StatusTooManyRequests
	case fault.Conflict, fault.Exists:
		code = http.StatusConflict
	case fault.Unavailable:
		text = "No cluster leader: " + text
	}
	if field := fault.FieldOf(err); field != "" {
		text = field + " " + text
	}
	return code, text
}

// header sets the headers that clients read from every answer. An index is never 0. Without a leader the answer is as
// old as the last contact to the group.
func (s *Server) header(r *request, index int64) {
	known, age := s.Led(), time.Duration(0)
	if !known && s.Agent != nil {
		if got, err := s.Agent.Catalog.Services(r.Context(), instance.DefaultNamespace); err == nil {
			age = got.Age
		}
	}
	h := r.w.Header()
	h.Set("X-Consul-Index", strconv.FormatInt(max(index, 1), 10))
	h.Set("X-Consul-KnownLeader", strconv.FormatBool(known))
	h.Set("X-Consul-LastContact", strconv.FormatInt(age.Milliseconds(), 10))
}

// answer writes an answer in JSON.
func (s *Server) answer(r *request, index int64, v any) error {
	return s.answerCode(r, http.StatusOK, index, v)
}

func (s *Server) answerCode(r *request, code int, index int64, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("an answer has no JSON: %w", err)
	}
	s.header(r, index)
	s.write(r, code, "application/json", text)
	return nil
}

// render writes an answer in JSON that takes some bytes until it is text.
func (s *Server) render(r *request, index int64, bytes int, made func() (any, error)) error {
	if err := r.take(bytes); err != nil {
		return err
	}
	v, err := made()
	if err != nil {
		return err
	}
	return s.answer(r, index, v)
}

// stream writes a list in JSON while it is made, and keeps a piece of it.
func (s *Server) stream(r *request, index int64, list func(put func(any) error) error) error {
	begun, first, held := false, true, []byte{'['}
	send := func() error {
		if !begun {
			begun = true
			s.header(r, index)
			r.w.Header().Set("Content-Type", "application/json")
			r.w.Header().Set("X-Content-Type-Options", "nosniff")
			r.w.WriteHeader(http.StatusOK)
		}
		_, err := r.w.Write(held)
		held = held[:0]
		return err
	}
	err := list(func(v any) error {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if !first {
			held = append(held, ',')
		}
		if held, first = append(held, text...), false; len(held) < pieceBytes {
			return nil
		}
		return send()
	})
	switch {
	case err != nil && !begun:
		return err
	case err != nil:
		panic(http.ErrAbortHandler) // net/http breaks the connection: nobody takes the list for complete
	case !begun:
		r.w.Header().Set("Content-Length", strconv.Itoa(len(held)+1))
	}
	held = append(held, ']')
	_ = send() // a failure is the client's loss
	return nil
}

// write sends a whole answer, if the budget has room for it.
func (s *Server) write(r *request, code int, kind string, text []byte) {
	var err error
	if !r.reads && (r.Method == http.MethodPut || r.Method == http.MethodDelete) {
		err = r.room.ToForChange(r.Context(), len(text)) // the change is made, so its answer must not look refused
	} else {
		err = r.room.To(r.Context(), len(text), 0)
	}
	if err != nil {
		r.giveBack()
		code, kind, text = http.StatusInternalServerError, "text/plain; charset=utf-8", []byte(fault.Message(err))
		if fault.KindOf(err) == fault.PoolExhausted {
			code = http.StatusTooManyRequests
		}
	}
	h := r.w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	r.w.WriteHeader(code)
	_, _ = r.w.Write(text) // a failure is the client's loss
}

// endpoint is the address of a member in the form of Consul, or without one the id of its peer.
func endpoint(m coord.Member) string {
	if parts := strings.Split(m.Address, "/"); len(parts) > 4 {
		return net.JoinHostPort(parts[2], parts[4]) // /ip4/ADDRESS/tcp/PORT
	}
	return m.Peer
}

// servers is the service that Consul's own servers are in its catalog, and here the voters of the group.
const servers = "consul"

// voters returns the instances that stand for the voters.
func (s *Server) voters(ctx context.Context) (list []*instance.Instance, err error) {
	g, err := s.Group(ctx)
	for _, m := range g.Voters {
		host, port, _ := net.SplitHostPort(endpoint(m))
		n, _ := strconv.Atoi(port)
		list = append(list, &instance.Instance{
			Key: instance.Key{Namespace: instance.DefaultNamespace, Service: servers, ID: servers}, Peer: m.Peer, Status: instance.StatusUp,
			Spec: instance.Spec{Host: cmp.Or(host, m.Peer), Port: n, Weight: 1},
		})
	}
	return list, err
}

// leader answers who leads the group; nobody is "".
func (s *Server) leader(r *request) error {
	g, err := s.Group(r.Context())
	if err != nil {
		return err
	}
	leader := g.Leader
	if at := slices.IndexFunc(g.Voters, func(m coord.Member) bool { return m.Peer == leader }); at >= 0 {
		leader = endpoint(g.Voters[at])
	}
	return s.answer(r, 1, leader)
}

// peers answers the voters of the group.
func (s *Server) peers(r *request) error {
	g, err := s.Group(r.Context())
	if err != nil {
		return err
	}
	out := []string{}
	for _, m := range g.Voters {
		out = append(out, endpoint(m))
	}
	return s.answer(r, 1, out)
}
