// Package mcpapi is the front end for agents, at the address of package httpapi. It speaks the Model Context Protocol (modelcontextprotocol.io): a
// POST of one JSON-RPC message, and the answer as JSON. It keeps no session and sends nothing unasked. And it answers those who look for resources
// by Agentic Resource Discovery, see entry.
//
// A tool is a route of the HTTP API: it has its words, its schema, its checks and its role. The package only translates.
package mcpapi

import (
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
	// API is the whole HTTP API, guards included; required. A call of a tool passes on the credentials and the context of its request.
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

// Routes returns the paths of the front. At /mcp the HTTP server answers other methods with 405, which tells clients that there is no stream and no session.
func (s *Server) Routes() []httpapi.Route {
	return []httpapi.Route{
		{Pattern: "POST /mcp", Role: access.RoleReadOnly, Waits: true, Handler: http.HandlerFunc(s.serve)},
		{Pattern: "GET /.well-known/ai-catalog.json", Role: access.RoleReadOnly, Handler: s.resources(s.catalog)},
		{Pattern: "POST /search", Role: access.RoleReadOnly, Handler: s.resources(s.search)},
		{Pattern: "GET /v0.1/servers", Role: access.RoleReadOnly, Handler: s.resources(s.servers)},
		{Pattern: "GET /v0.1/servers/{name}/versions", Role: access.RoleReadOnly, Handler: s.resources(s.serverVersions)},
		{Pattern: "GET /v0.1/servers/{name}/versions/{version}", Role: access.RoleReadOnly, Handler: s.resources(s.server)},
	}
}

// versions are those of the protocol that this server speaks, newest first. It uses nothing in which they differ.
func versions() []string { return []string{"2025-11-25", "2025-06-18", "2025-03-26"} }

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
}

// Codes of JSON-RPC, and the one of MCP.
const (
	parseError     = -32700
	invalidRequest = -32600
	methodUnknown  = -32601
	invalidParams  = -32602
	internalError  = -32603
	resourceAbsent = -32002
)

func wrong(code int, format string, args ...any) *failure {
	return &failure{code, fmt.Sprintf(format, args...)}
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

// serve answers one message.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	r, end := holding(r)
	defer end()
	if v := r.Header.Get("MCP-Protocol-Version"); v != "" && !slices.Contains(versions(), v) {
		s.write(w, r, http.StatusBadRequest, &message{Error: wrong(invalidRequest, "MCP-Protocol-Version %q is unknown here: use one of %q", v, versions())})
		return
	}
	asked, err := s.read(w, r)
	switch {
	case err != nil:
		s.write(w, r, http.StatusBadRequest, &message{Error: err})
		return
	case asked.Method == "" || asked.ID == nil: // an answer to a question that nobody asked, or a notification
		w.WriteHeader(http.StatusAccepted)
		return
	}
	answer := &message{ID: asked.ID}
	if answer.Result, answer.Error = s.answer(r, asked); answer.Error != nil {
		answer.Result = nil
	}
	s.write(w, r, http.StatusOK, answer)
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

// read reads a message.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (*message, *failure) {
	text, err := s.body(w, r)
	if err != nil {
		return nil, wrong(internalError, "the message cannot be read: %s", fault.Message(err))
	}
	m := new(message)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, wrong(parseError, "the body is no JSON-RPC message: %s", err)
	}
	if m.Version != "2.0" || len(m.ID) > 256 || string(m.ID) == "null" {
		return nil, wrong(invalidRequest, `the body is no message of JSON-RPC 2.0 with "jsonrpc": "2.0" and an id of at most 256 bytes`)
	}
	return m, nil
}

// answer does what a message asks for.
func (s *Server) answer(r *http.Request, m *message) (any, *failure) {
	var p struct { // the parameters of all methods
		Version   string                     `json:"protocolVersion"`
		Name      string                     `json:"name"`
		Arguments map[string]json.RawMessage `json:"arguments"`
		URI       string                     `json:"uri"`
	}
	if m.Params != nil {
		if err := json.Unmarshal(m.Params, &p); err != nil {
			return nil, wrong(invalidParams, "params of %s are not what it takes: %s", m.Method, err)
		}
	}
	none := map[string]any{}
	switch m.Method {
	case "initialize":
		if !slices.Contains(versions(), p.Version) {
			p.Version = versions()[0]
		}
		return map[string]any{
			"protocolVersion": p.Version, "capabilities": map[string]any{"tools": none, "resources": none}, "instructions": instructions,
			"serverInfo": map[string]any{"name": "blackholed", "title": "Service discovery and locks", "version": cmp.Or(s.Version, "unknown")},
		}, nil
	case "ping":
		return none, nil
	case "tools/list":
		return map[string]any{"tools": s.described()}, nil
	case "tools/call":
		return s.call(r, p.Name, p.Arguments)
	case "resources/list":
		return map[string]any{"resources": readable()}, nil
	case "resources/templates/list":
		return map[string]any{"resourceTemplates": []map[string]string{{"uriTemplate": scheme + "services/{service}/instances", "name": "instances", "mimeType": "application/json"}}}, nil
	case "resources/read":
		return s.resource(r, p.URI)
	default:
		return nil, wrong(methodUnknown, "this server has no method %q", m.Method)
	}
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
