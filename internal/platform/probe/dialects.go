package probe

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
)

// dialect is one way to begin a conversation in a protocol over HTTP, and what proves that the endpoint speaks it.
type dialect struct {
	kind    string
	since   string                   // revision of the specification that has it, or the month when it was read
	method  string                   // empty: GET
	at      func(path string) string // the path that is asked for the declared one; nil: itself
	header  http.Header
	body    string
	event   string                                      // name of the event with the answer, of a stream; empty: any
	proves  func(*answer) (words, text string, ok bool) // words of this program; text of the endpoint
	errs    func(*answer) (text string, ok bool)        // the answer is an error in the form of the protocol
	only    bool                                        // it counts only if it proves the protocol
	anyBody bool                                        // the status alone is an answer
}

// revisions of MCP that are known, newest first.
func revisions() []string {
	return []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
}

// dialects is the table, the newest of each protocol first. A check asks in this order until one is proved or a gate
// is closed. Read on 2026-11-29, and to be read again with each release: modelcontextprotocol.io (2026-07-28),
// a2a-protocol.org (1.0), the references of OpenAI, Ollama and Amazon S3.
func dialects() []dialect {
	rpc := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	stateless := rpc.Clone()
	stateless.Set("Mcp-Protocol-Version", "2026-07-28")
	stateless.Set("Mcp-Method", "server/discover")
	card := member("skills", "supportedInterfaces")
	return []dialect{
		{kind: "http", since: "2026-11", proves: anything, errs: problem, anyBody: true},
		{
			kind: "mcp", since: "2026-07-28", method: http.MethodPost, header: stateless,
			proves: discovers, errs: rpcFails,
			body: `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{` +
				`"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
				`"io.modelcontextprotocol/clientInfo":{"name":"mcp","version":"0.1.0"},` +
				`"io.modelcontextprotocol/clientCapabilities":{}}}}`,
		},
		{ // a server of an earlier revision answers with its own
			kind: "mcp", since: "2025-11-25", method: http.MethodPost, header: rpc, proves: initializes, errs: rpcFails,
			body: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` +
				`"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"mcp","version":"0.1.0"}}}`,
		},
		{
			kind: "mcp", since: "2024-11-05", header: http.Header{"Accept": {"text/event-stream"}}, event: "endpoint",
			proves: streams, errs: rpcFails, only: true,
		},
		{kind: "a2a", since: "1.0", at: below("/.well-known/agent-card.json"), proves: card, errs: fails},
		{kind: "a2a", since: "0.3", at: root("/.well-known/agent-card.json"), proves: card, errs: fails},
		{kind: "a2a", since: "0.2", at: root("/.well-known/agent.json"), proves: card, errs: fails},
		{kind: "openai", since: "2026-11", at: besideV1, proves: models, errs: fails},
		{kind: "ollama", since: "2026-11", at: below("/api/tags"), proves: member("models"), errs: fails},
		{kind: "s3", since: "2006-03-01", proves: buckets, errs: denies},
	}
}

// dialectsOf returns those of a kind whose paths differ for a declared path, each with its path.
func dialectsOf(kind, declared string) (list []dialect) {
	for _, d := range dialects() {
		path := declared
		if d.at != nil && !strings.HasSuffix(declared, ".json") { // else it is the card itself
			path = d.at(declared)
		}
		same := func(o dialect) bool {
			return o.method == d.method && o.at("") == path && o.body == d.body && o.event == d.event
		}
		if d.at = func(string) string { return path }; d.kind == kind && !slices.ContainsFunc(list, same) {
			list = append(list, d)
		}
	}
	return list
}

// below appends to the declared path, besideV1 to what is before its version, and root replaces it. A query belongs to
// the declared path alone.
func below(rest string) func(string) string {
	return func(path string) string { return base(path) + rest }
}

func besideV1(path string) string { return strings.TrimSuffix(base(path), "/v1") + "/v1/models" }

func base(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return strings.TrimSuffix(path, "/")
}

func root(path string) func(string) string { return func(string) string { return path } }

func anything(a *answer) (string, string, bool) { return a.text(), "", true }

// member proves a protocol whose answer is a JSON object with one of some members. A cut body counts if the member
// comes before the cut.
func member(names ...string) func(*answer) (string, string, bool) {
	return func(a *answer) (string, string, bool) {
		return a.text(), "", slices.ContainsFunc(names, func(name string) bool { return a.find(nil, name) })
	}
}

// models is the list of an API in the style of OpenAI, in an object or bare.
func models(a *answer) (string, string, bool) {
	return a.text(), "", a.find(nil, "data") || bytes.HasPrefix(a.body, []byte("["))
}

func discovers(a *answer) (words, text string, ok bool) {
	var all []string
	ok = a.find(&all, "result", "supportedVersions") && len(all) > 0
	words, text = spoken("discovered", all...)
	return words, text, ok
}

func initializes(a *answer) (words, text string, ok bool) {
	var revision string
	ok = a.find(&revision, "result", "protocolVersion") && revision != ""
	words, text = spoken("initialized", revision)
	return words, text, ok
}

// spoken names the newest known revision of those that a server speaks. Only unknown ones are told in its own words.
func spoken(did string, theirs ...string) (words, text string) {
	for _, revision := range revisions() {
		if slices.Contains(theirs, revision) {
			return did + " " + revision, ""
		}
	}
	return did + " an unknown revision", strings.Join(theirs, " ")
}

func streams(a *answer) (string, string, bool) {
	return "streams as of 2024-11-05", "", a.event == "endpoint" && len(a.body) > 0
}

func rpcFails(a *answer) (text string, ok bool) {
	ok = a.find(nil, "jsonrpc") && a.find(nil, "error")
	_ = ok && a.find(&text, "error", "message")
	return text, ok
}

// fails is an error of an API of JSON: of an object with a message, or a text.
func fails(a *answer) (text string, ok bool) {
	_ = a.find(&text, "error") || a.find(&text, "error", "message")
	return text, a.find(nil, "error")
}

// problem is an error of an API behind a plain HTTP endpoint (RFC 9457, or the common form).
func problem(a *answer) (text string, ok bool) {
	if strings.HasPrefix(a.header.Get("Content-Type"), "application/problem+json") {
		_ = a.find(&text, "title")
		return text, true
	}
	return fails(a)
}

func buckets(a *answer) (string, string, bool) {
	lists := a.says("<listallmybucketsresult", "<listbucketresult")
	return a.text(), "", lists || a.header.Get("X-Amz-Request-Id") != ""
}

func denies(a *answer) (text string, ok bool) {
	_, code, _ := bytes.Cut(a.body, []byte("<Code>"))
	code, _, ok = bytes.Cut(code, []byte("</Code>"))
	return string(code), ok && bytes.Contains(a.body, []byte("<Error"))
}
