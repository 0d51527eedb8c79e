// Package mcpapi is the front end for agents, at the address of package httpapi. It speaks the Model Context
// Protocol (modelcontextprotocol.io): a POST of one JSON-RPC message, and the answer as JSON, or a stream for who
// listens. It keeps no session and sends nothing unasked. And it answers those who look for resources by Agentic
// Resource Discovery, see entry.
//
// A tool is a route of the HTTP API: it has its words, its schema, its checks and its role. The package only
// translates.
package mcpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Bounds of the front.
const (
	maxBody   = 64 << 10 // as in the HTTP API
	maxAnswer = 1 << 20  // of the HTTP API; an agent reads far less
)

// Config holds the parts of a Server.
type Config struct {
	// API is the whole HTTP API, guards included; required. A call of a tool passes on the credentials and the
	// context of its request.
	API     http.Handler
	Version string // of the program
	// Referrals are URLs of the searches of other registries. The front names them to clients and calls none.
	Referrals []string
	// Answers bounds the bytes of answers that clients have not taken yet. Nil: they have no bound.
	Answers *access.Pool
	// Bodies bounds the bytes of requests. Nil: they have no bound.
	Bodies *access.Pool
}

// Server is the front end for agents.
type Server struct {
	Config
	described func() []description
}

// New makes a server.
func New(c Config) *Server { return &Server{Config: c, described: sync.OnceValue(describe)} }

// Routes returns the paths of the front. At /mcp the HTTP server answers other methods with 405, which tells
// clients that there is no stream and no session.
func (s *Server) Routes() []httpapi.Route {
	public := func(pattern string, serve func(http.ResponseWriter, *http.Request, string) (any, error)) httpapi.Route {
		return httpapi.Route{Pattern: pattern, Role: access.RoleReadOnly, Public: true, Handler: s.resources(serve)}
	}
	return []httpapi.Route{
		{Pattern: "POST /mcp", Role: access.RoleReadOnly, Waits: true, Handler: http.HandlerFunc(s.serve)},
		{Pattern: "POST /mcp/{$}", Role: access.RoleReadOnly, Waits: true, Handler: http.HandlerFunc(s.serve)},
		public("GET /.well-known/ai-catalog.json", s.catalog),
		public("GET /.well-known/ard.json", s.catalog),
		public("GET /agents/{identifier}", s.byIdentifier),
		{Pattern: "POST /search", Role: access.RoleReadOnly, Handler: s.resources(s.search)},
		public("GET /v0.1/servers", s.servers),
		public("GET /v0.1/servers/{$}", s.servers),
		public("GET /v0.1/servers/{name}/versions", s.serverVersions),
		public("GET /v0.1/servers/{name}/versions/{version}", s.server),
	}
}

// message is a request, a notification (without an id) or an answer (without a method) of JSON-RPC 2.0.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *failure        `json:"error,omitempty"`
}

// failure is an error of JSON-RPC.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`

	status int // of HTTP; 0: 200
}

// Codes of JSON-RPC, and those of MCP.
const (
	parseError         = -32700
	invalidRequest     = -32600
	methodUnknown      = -32601
	invalidParams      = -32602
	internalError      = -32603
	resourceAbsent     = -32002 // before revision 2026-07-28
	headerMismatch     = -32020
	unsupportedVersion = -32022
)

func wrong(code int, format string, args ...any) *failure {
	return &failure{Code: code, Message: fmt.Sprintf(format, args...)}
}

// bad is a failure that HTTP shows as a bad request too.
func bad(code int, format string, args ...any) *failure {
	f := wrong(code, format, args...)
	f.status = http.StatusBadRequest
	return f
}

// room is what a request has of the budget of answers until it is over. One goroutine uses it.
type room struct {
	n       int
	release func() // nil: nothing
}

type roomKey struct{}

// holding returns a request with a room, which end gives back.
func holding(r *http.Request) (with *http.Request, end func()) {
	h := new(room)
	return r.WithContext(context.WithValue(r.Context(), roomKey{}, h)), h.end
}

func (h *room) end() {
	if h.release != nil {
		h.release()
	}
	h.release = nil
}

// take gives n bytes to the answer of a request, in place of fewer. It takes all anew, since an idle pool has room
// for one answer of any size. from is a method of the pool.
func (s *Server) take(r *http.Request, n int, from func(context.Context, string, int) (func(), error)) (err error) {
	h, ok := r.Context().Value(roomKey{}).(*room)
	if !ok || n <= h.n {
		return nil
	}
	h.end()
	h.n = n
	h.release, err = from(r.Context(), "mcpapi", n)
	return err
}

// more gives n further bytes to the answer of a request. Error: PoolExhausted.
func (s *Server) more(r *http.Request, n int) error {
	h, ok := r.Context().Value(roomKey{}).(*room)
	if !ok {
		return nil
	}
	return s.take(r, h.n+n, func(ctx context.Context, op string, n int) (func(), error) {
		return s.Answers.TakeBytes(ctx, op, n, 0)
	})
}

// serve answers a message, or a batch of them.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	r, end := holding(r)
	defer end()
	text, err := s.body(w, r)
	if err != nil {
		s.write(w, r, http.StatusBadRequest, &message{Error: wrong(internalError, "the message cannot be read: %s", fault.Message(err))})
		return
	}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		s.serveBatch(w, r, text)
		return
	}
	q, failed := read(r, text)
	switch {
	case failed == nil && q.silent():
		w.WriteHeader(http.StatusAccepted)
	case failed == nil && q.stateless() && q.Method == "subscriptions/listen":
		s.listen(w, r, q)
	default:
		m := s.answered(r, q, failed)
		code := http.StatusOK
		if m.Error != nil {
			code = cmp.Or(m.Error.status, code)
		}
		s.write(w, r, code, m)
	}
}

// maxBatch bounds the messages of a batch.
const maxBatch = 16

// serveBatch answers a batch of revision 2025-03-26, the only one that has them: its clients send no header.
func (s *Server) serveBatch(w http.ResponseWriter, r *http.Request, text []byte) {
	var list []json.RawMessage
	refused := func(code int, format string, args ...any) {
		s.write(w, r, http.StatusBadRequest, &message{Error: wrong(code, format, args...)})
	}
	if err := json.Unmarshal(text, &list); err != nil {
		refused(parseError, "the body is no JSON-RPC message: %s", err)
		return
	}
	if v := r.Header.Get(versionHeader); v != "" && v != batching {
		refused(invalidRequest, "revision %s has no batches: send one message", v)
		return
	}
	if len(list) == 0 || len(list) > maxBatch {
		refused(invalidRequest, "a batch has 1 to %d messages, not %d", maxBatch, len(list))
		return
	}
	var answers []*message
	for _, one := range list {
		q, failed := read(r, one)
		if failed == nil && q.Method == "initialize" {
			failed = wrong(invalidRequest, "initialize stands alone")
		}
		if failed != nil || !q.silent() {
			answers = append(answers, s.answered(r, q, failed))
		}
	}
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if err := s.send(w, r, http.StatusOK, answers); err != nil {
		s.write(w, r, http.StatusServiceUnavailable, &message{Error: wrong(internalError, "%s", fault.Message(err))})
	}
}

// answered does what a request asks for, and completes the answer.
func (s *Server) answered(r *http.Request, q *request, failed *failure) *message {
	m := &message{Version: "2.0", ID: q.ID, Error: failed}
	if m.ID == nil {
		m.ID = json.RawMessage("null")
	}
	if failed != nil {
		return m
	}
	if m.Result, m.Error = s.answer(r, q); m.Error != nil {
		m.Result = nil
	} else if q.stateless() {
		m.Result = s.complete(q.Method, m.Result)
	}
	return m
}

// body reads the body of a request.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	size := int64(maxBody)
	if n := r.ContentLength; 0 <= n && n <= size {
		size = n
	}
	release, err := s.Bodies.TakeBytes(r.Context(), "mcpapi", int(size), 0)
	if err != nil {
		return nil, err
	}
	if release != nil {
		defer release()
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	// The request has arrived, so the bound on reading it must not end a wait.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return text, err
}

// answer does what a request asks for.
func (s *Server) answer(r *http.Request, q *request) (any, *failure) {
	none := map[string]any{}
	switch method := q.Method; {
	case method == "initialize" && !q.stateless():
		v := q.params.Version
		if v != oldest || r.Header.Get(versionHeader) != oldest {
			if v == stateless || !slices.Contains(versions(), v) {
				v = handshakes()[0]
			}
		}
		return map[string]any{
			"protocolVersion": v, "capabilities": map[string]any{"tools": none, "resources": none}, "instructions": instructions, "serverInfo": s.info(),
		}, nil
	case method == "server/discover" && q.stateless():
		return map[string]any{
			"supportedVersions": versions(), "capabilities": map[string]any{"tools": none, "resources": map[string]any{"subscribe": true}},
			"instructions": instructions,
		}, nil
	case method == "ping" && !q.stateless():
		return none, nil
	case method == "tools/list":
		return map[string]any{"tools": s.described()}, nil
	case method == "tools/call":
		return s.call(r, q.params.Name, q.params.Arguments)
	case method == "resources/list":
		return map[string]any{"resources": readable()}, nil
	case method == "resources/templates/list":
		return map[string]any{"resourceTemplates": []map[string]string{{"uriTemplate": scheme + "services/{service}/instances", "name": "instances", "mimeType": "application/json"}}}, nil
	case method == "resources/read":
		found, failed := s.resource(r, q.params.URI)
		if failed != nil && failed.Code == resourceAbsent && q.stateless() {
			failed.Code = invalidParams
		}
		return found, failed
	}
	f := wrong(methodUnknown, "this server has no method %q", q.Method)
	if q.stateless() {
		f.status = http.StatusNotFound
	}
	return nil, f
}

// info names this server.
func (s *Server) info() map[string]any {
	return map[string]any{"name": "blackholed", "title": "Service discovery and locks", "version": cmp.Or(s.Version, "unknown")}
}

// write sends a message, or the lack of room for it.
func (s *Server) write(w http.ResponseWriter, r *http.Request, code int, m *message) {
	m.Version = "2.0"
	if m.ID == nil {
		m.ID = json.RawMessage("null")
	}
	if err := s.send(w, r, code, m); err != nil {
		m.Result, m.Error = nil, wrong(internalError, "%s", fault.Message(err))
		_ = s.send(w, r, http.StatusServiceUnavailable, m) // a small answer always has room
	}
}

// send sends an answer in JSON, if the budget has room for it.
func (s *Server) send(w http.ResponseWriter, r *http.Request, code int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := s.take(r, len(text), s.Answers.TakeForChange); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // a failure is the client's loss
	return nil
}
