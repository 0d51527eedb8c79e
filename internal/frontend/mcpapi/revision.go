package mcpapi

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// Revisions of the protocol. Clients of a stateless one state it in each message, and say it in headers too.
// Clients of the others agree on one by a handshake, of which this server remembers nothing: it uses nothing in
// which they differ.
const (
	stateless = "2026-07-28"
	batching  = "2025-03-26"
	oldest    = "2024-11-05" // over standard input and output alone: its transport over HTTP is another one
)

// versions are the revisions that this server speaks over HTTP, newest first.
func versions() []string { return append([]string{stateless}, handshakes()...) }

func handshakes() []string { return []string{"2025-11-25", "2025-06-18", batching} }

const versionHeader = "MCP-Protocol-Version"

// meta begins the names of the fields in _meta that the protocol reserves.
const meta = "io.modelcontextprotocol/"

// request is a message with the parameters of all methods.
type request struct {
	message
	params struct {
		Meta          map[string]json.RawMessage `json:"_meta"`
		Version       string                     `json:"protocolVersion"`
		Name          string                     `json:"name"`
		Arguments     map[string]json.RawMessage `json:"arguments"`
		URI           string                     `json:"uri"`
		Notifications struct {
			Resources []string `json:"resourceSubscriptions"`
		} `json:"notifications"`
	}
	spoken string // revision; "": not said
}

// silent reports whether nobody waits for an answer.
func (q *request) silent() bool { return q.Method == "" || q.ID == nil }

func (q *request) stateless() bool { return q.spoken == stateless }

// read reads a message. A failure has the id of the message, if there is one: without it no client knows whose it is.
func read(r *http.Request, text []byte) (*request, *failure) {
	q := new(request)
	if err := json.Unmarshal(text, &q.message); err != nil {
		return new(request), bad(parseError, "the body is no JSON-RPC message: %s", err)
	}
	if len(q.ID) > 256 || string(q.ID) == "null" {
		q.ID = nil
		return q, bad(invalidRequest, "the id of a message is a string or a number of at most 256 bytes")
	}
	if q.message.Version != "2.0" {
		return q, bad(invalidRequest, `the body is no message of JSON-RPC 2.0: it needs "jsonrpc": "2.0"`)
	}
	if q.Params != nil {
		if err := json.Unmarshal(q.Params, &q.params); err != nil {
			return q, wrong(invalidParams, "params of %s are not what it takes: %s", q.Method, err)
		}
	}
	if q.silent() {
		return q, nil
	}
	return q, q.agree(r)
}

// agree finds the revision of a request, and checks what it demands of one.
func (q *request) agree(r *http.Request) *failure {
	header := r.Header.Get(versionHeader)
	if text, ok := q.params.Meta[meta+"protocolVersion"]; ok {
		if json.Unmarshal(text, &q.spoken) != nil {
			return bad(invalidParams, "_meta.%sprotocolVersion must be a text", meta)
		}
		if header != "" && header != q.spoken {
			return bad(headerMismatch, "the header %s is %q, and the message says %q", versionHeader, header, q.spoken)
		}
	} else if q.Method == "initialize" { // it asks for a revision; some clients send the newest they know as header
		return nil
	} else {
		q.spoken = header
	}
	switch {
	case q.spoken != "" && q.spoken != oldest && !slices.Contains(versions(), q.spoken):
		f := bad(unsupportedVersion, "this server does not speak revision %q of the protocol: use one of %q", q.spoken, versions())
		f.Data = map[string]any{"supported": versions(), "requested": q.spoken}
		return f
	case !q.stateless():
		return nil
	}
	for _, name := range []string{"protocolVersion", "clientCapabilities"} {
		if q.params.Meta[meta+name] == nil {
			return bad(invalidParams, "_meta.%s%s is missing: each request of revision %s has it", meta, name, stateless)
		}
	}
	says := map[string]string{versionHeader: q.spoken, "Mcp-Method": q.Method}
	switch q.Method {
	case "tools/call":
		says["Mcp-Name"] = q.params.Name
	case "resources/read":
		says["Mcp-Name"] = q.params.URI
	}
	for _, name := range []string{versionHeader, "Mcp-Method", "Mcp-Name"} {
		if want, ok := says[name]; ok && plainHeader(r.Header.Get(name)) != want {
			return bad(headerMismatch, "the header %s is %q, and the message says %q", name, r.Header.Get(name), want)
		}
	}
	return nil
}

// plainHeader decodes the form of a value that no header can carry as it is.
func plainHeader(value string) string {
	inner, coded := strings.CutPrefix(value, "=?base64?")
	inner, ends := strings.CutSuffix(inner, "?=")
	if !coded || !ends {
		return value
	}
	text, err := base64.StdEncoding.DecodeString(inner)
	if err != nil {
		return value
	}
	return string(text)
}

// complete adds to a result what the stateless revision demands: that it is the last word, who says it, and how
// long it stands.
func (s *Server) complete(method string, result any) any {
	c := completed{result: result, head: map[string]any{
		"resultType": "complete", "_meta": map[string]any{meta + "serverInfo": s.info()},
	}}
	switch method {
	case "server/discover", "tools/list", "resources/list", "resources/templates/list": // the same for all until an upgrade
		c.head["ttlMs"], c.head["cacheScope"] = 3_600_000, "public"
	case "resources/read":
		c.head["ttlMs"], c.head["cacheScope"] = 0, "private"
	}
	return c
}

// completed is a result with the fields of head.
type completed struct {
	head   map[string]any
	result any
}

// MarshalJSON implements json.Marshaler.
func (c completed) MarshalJSON() ([]byte, error) {
	head, err := json.Marshal(c.head)
	if err != nil {
		return nil, err
	}
	rest, err := json.Marshal(c.result) // an object
	if err != nil || len(rest) <= len("{}") {
		return head, err
	}
	return append(append(head[:len(head)-1], ','), rest[1:]...), nil
}
