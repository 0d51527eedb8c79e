package mcpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/mcpapi"
	"github.com/blackhole/blackhole/internal/platform/access"
)

// front is a server over an API that answers with what it was asked.
type front struct {
	t   *testing.T
	mux *http.ServeMux
	api http.HandlerFunc
}

func start(t *testing.T, change func(*mcpapi.Config)) *front {
	f := &front{t: t, mux: http.NewServeMux()}
	f.api = func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(map[string]string{"asked": r.Method + " " + r.URL.RequestURI(), "body": string(body), "as": r.Header.Get("Authorization"), "host": r.Host})
	}
	c := mcpapi.Config{API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.api(w, r) }), Version: "1"}
	if change != nil {
		change(&c)
	}
	for _, r := range mcpapi.New(c).Routes() {
		require.Equal(t, access.RoleReadOnly, r.Role)
		f.mux.Handle(r.Pattern, r.Handler)
	}
	return f
}

func (f *front) post(body string, header ...string) (int, string) {
	r := httptest.NewRequestWithContext(f.t.Context(), http.MethodPost, "/mcp", strings.NewReader(body))
	r.Host = "peer"
	for n := 0; n+1 < len(header); n += 2 {
		r.Header.Set(header[n], header[n+1])
	}
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// ask returns the result of a method.
func (f *front) ask(method, params string) (result map[string]any) {
	f.t.Helper()
	code, body := f.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":%q,"params":%s}`, method, params), "Authorization", "Bearer secret")
	require.Equal(f.t, http.StatusOK, code)
	var m struct {
		ID     string
		Result map[string]any
		Error  any
	}
	require.NoError(f.t, json.Unmarshal([]byte(body), &m))
	require.Nil(f.t, m.Error)
	require.Equal(f.t, "x", m.ID)
	return m.Result
}

func TestInitialize(t *testing.T) {
	f := start(t, nil)
	for asked, spoken := range map[string]string{"2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2099-01-01": "2025-11-25", "": "2025-11-25"} {
		got := f.ask("initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"a","version":"1"}}`, asked))
		require.Equal(t, spoken, got["protocolVersion"])
		require.Contains(t, got["capabilities"], "tools")
	}
	code, body := f.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	require.Equal(t, http.StatusAccepted, code)
	require.Empty(t, body)
	code, _ = f.post(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	require.Equal(t, http.StatusAccepted, code, "an answer that nobody asked for")
	require.Empty(t, f.ask("ping", "{}"))
}

// TestTools: each tool has the words and the schema of its route, whole.
func TestTools(t *testing.T) {
	list := start(t, nil).ask("tools/list", "{}")["tools"].([]any)
	fields := map[string][]string{
		"find_offers": {"type", "near", "max_price", "where", "explain"}, "find_instances": {"service", "health", "version"}, "watch_instances": {"index", "wait"},
		"search": {"words", "limit"}, "hold": {"names", "agent", "ttl", "wait", "why"}, "release": {"agent", "names"}, "held": {"agent", "names"},
		"register_offer": {"metadata"}, "register_instance": {"service", "host", "port"}, "list_services": nil,
	}
	for _, one := range list {
		tool := one.(map[string]any)
		schema := tool["inputSchema"].(map[string]any)
		require.Equal(t, "object", schema["type"])
		for _, name := range fields[tool["name"].(string)] {
			require.Contains(t, schema["properties"], name, tool["name"])
		}
		delete(fields, tool["name"].(string))
		require.NotContains(t, schema["properties"], "attempt")
		require.Greater(t, len(tool["description"].(string)), 40, tool["name"])
		text, err := json.Marshal(schema)
		require.NoError(t, err)
		require.NotContains(t, string(text), "#/components/", tool["name"])
		for _, ref := range strings.Split(string(text), `"#/$defs/`)[1:] {
			require.Contains(t, schema["$defs"], ref[:strings.IndexByte(ref, '"')], tool["name"])
		}
	}
	require.Empty(t, fields)
	whole, err := json.Marshal(list)
	require.NoError(t, err)
	t.Logf("the texts of the tools have %d bytes", len(whole))
	require.NotContains(t, string(whole), "event-stream", "texts for agents, not for HTTP")
	require.NotContains(t, string(whole), ":null", "no schema")
}

func TestCalls(t *testing.T) {
	f := start(t, nil)
	for _, c := range []struct{ tool, args, asked, body string }{
		{"find_offers", `{"type":"compute","max_price":2}`, "POST /v1/discovery/query", `{"max_price":2,"type":"compute"}`},
		{"find_instances", `{"service":"a b/c","tags":["x","y"],"health":"any"}`, "GET /v1/services/a%20b%2Fc/instances?health=any&tags=x&tags=y", ""},
		{"list_services", `{}`, "GET /v1/services", ""},
		{"watch_instances", `{"service":"a","index":12,"wait":"1m"}`, "GET /v1/services/a/watch?index=12&wait=1m", ""},
		{"register_instance", `{"service":"a","id":"1","port":80}`, "POST /v1/services/a/instances", `{"id":"1","port":80}`},
	} {
		got := f.ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, c.tool, c.args))
		require.Equal(t, map[string]any{"asked": c.asked, "body": c.body, "as": "Bearer secret", "host": "peer"}, got["structuredContent"], c.tool)
		require.NotContains(t, got, "isError")
	}

	f.api = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Blackhole-Stale", "true")
		w.Header().Set("X-Blackhole-Age", "7")
		_, _ = w.Write([]byte("[1]\n"))
	}
	got := f.ask("tools/call", `{"name":"list_services"}`)
	require.NotContains(t, got, "structuredContent", "it must be an object")
	require.Contains(t, fmt.Sprint(got["content"]), "[1]")
	require.Contains(t, fmt.Sprint(got["content"]), "no contact to the group for 7 s")

	f.api = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error":"forbidden"}`))
	}
	got = f.ask("tools/call", `{"name":"list_services"}`)
	require.Equal(t, true, got["isError"])
	require.Contains(t, fmt.Sprint(got["content"]), "forbidden")

	f.api = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	require.Contains(t, fmt.Sprint(f.ask("tools/call", `{"name":"register_offer","arguments":{"id":"1"}}`)["content"]), "done")
	f.api = func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"complete":true,"results":[]}`)
	}
	require.Contains(t, fmt.Sprint(f.ask("tools/call", `{"name":"find_offers","arguments":{"type":"gpu"}}`)["content"]), "types of offers are agent, bandwidth, cdn, compute")
}

func TestRefused(t *testing.T) {
	f := start(t, nil)
	for _, c := range []struct {
		body string
		code int
		text string
	}{
		{`{`, 400, "-32700"},
		{`[]`, 400, "1 to 16 messages"},
		{`[`, 400, "-32700"},
		{``, 400, "-32700"},
		{`{"jsonrpc":"1.0","id":1,"method":"ping"}`, 400, "-32600"},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, 400, "-32600"},
		{`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 300) + `","method":"ping"}`, 400, "-32600"},
		{`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, 200, "-32601"},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`, 200, "-32602"},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"none"}}`, 200, "no tool"},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"find_instances","arguments":{"service":""}}}`, 200, `"text":"service of find_instances is missing"}],"isError":true`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hold","arguments":{"names":["a"]}}}`, 200, `"text":"agent of hold is missing"}],"isError":true`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hold","arguments":{"names":"a","agent":"x"}}}`, 200, `"isError":true`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"held","arguments":{"who":"x"}}}`, 200, "who of held is unknown"},
		{`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"blackhole:///v1/events"}}`, 200, "-32002"},
		{`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"blackhole:///v1/services/../instances"}}`, 200, "result"},
		{`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"blackhole:///v1/services/a?b/instances"}}`, 200, "-32002"},
		{`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}`, 200, `"data":{"uri":"file:///etc/passwd"}`},
		{`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 64<<10) + `"}}`, 400, "too large"},
	} {
		code, body := f.post(c.body)
		require.Equal(t, c.code, code, c.body)
		require.Contains(t, body, c.text, c.body)
	}
	code, body := f.post(`{"jsonrpc":"2.0","id":7,"method":"ping"}`, "MCP-Protocol-Version", "1999-01-01")
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, body, `"id":7,`)
	require.Contains(t, body, `"data":{"requested":"1999-01-01","supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26"]}`)
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/mcp", nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code, "there is no stream")
}

// TestBounds: a large answer is refused as one, and the budgets of the peer bound requests and answers.
func TestBounds(t *testing.T) {
	bodies, answers := access.NewPool("requests", 40<<10, nil), access.NewPool("answers", 40<<10, nil)
	f := start(t, func(c *mcpapi.Config) { c.Bodies, c.Answers = bodies, answers })
	large := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for range n {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 1<<10)); err != nil {
					return
				}
			}
		}
	}
	f.api = large(1 << 10)
	require.NotContains(t, f.ask("tools/call", `{"name":"list_services"}`), "isError")
	f.api = large(1<<10 + 1)
	require.Contains(t, fmt.Sprint(f.ask("tools/call", `{"name":"list_services"}`)), "ask for less")

	held, err := bodies.TakeBytes(t.Context(), "test", 40<<10, 0)
	require.NoError(t, err)
	_, body := f.post(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 30<<10) + `"}}`)
	require.Contains(t, body, "-32603")
	held()
	code, _ := f.post(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 30<<10) + `"}}`)
	require.Equal(t, http.StatusOK, code)
}

// TestAnswersFindRoomFirst: 40 readers that take nothing of the biggest answers hold no more than the budget, further
// ones are refused while their answer arrives, small answers go on, and a change never looks refused.
func TestAnswersFindRoomFirst(t *testing.T) {
	answers := access.NewPool("answer_bytes", 16<<20, nil)
	f := start(t, func(c *mcpapi.Config) { c.Answers = answers })
	big := `{"results":[` + strings.Repeat(`{"record":{"id":"a"}},`, 20_000) + `{"record":{"id":"a"}}]}`
	f.api = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/status" {
			_, _ = io.WriteString(w, `{"small":true}`)
			return
		}
		_, _ = io.WriteString(w, big)
	}
	call := func(tool, args string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
	}
	type request struct{ path, body string }
	for _, asked := range []request{
		{"/mcp", call("find_offers", `{"type":"compute"}`)}, {"/mcp", call("list_services", `{}`)},
		{"/mcp", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"blackhole:///v1/services"}}`},
		{"/search", `{"query":{"text":"a"}}`}, {"/v0.1/servers", ""}, {"/.well-known/ai-catalog.json", ""},
	} {
		t.Run(asked.path, func(t *testing.T) {
			method := http.MethodPost
			if asked.body == "" {
				method = http.MethodGet
			}
			taken := make(chan struct{})
			var gone sync.WaitGroup
			var refused atomic.Int32
			begun := make(chan struct{}, 40)
			for range 40 {
				gone.Go(func() {
					w := &unread{ResponseRecorder: httptest.NewRecorder(), begun: begun, taken: taken}
					f.mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, asked.path, strings.NewReader(asked.body)))
					if strings.Contains(w.Body.String(), "answer bytes") {
						refused.Add(1)
					}
				})
			}
			for range 40 {
				<-begun
			}
			require.Positive(t, answers.Used())
			require.LessOrEqual(t, answers.Used(), 12<<20)
			code, body := f.post(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"blackhole:///v1/status"}}`)
			require.Equal(t, 200, code)
			require.Contains(t, body, "small")
			close(taken)
			gone.Wait()
			require.Greater(t, refused.Load(), int32(20), "its copies count")
			require.Zero(t, answers.Used())
		})
	}
	full, err := answers.TakeBytes(t.Context(), "test", 8<<20, 0)
	require.NoError(t, err)
	defer full()
	more, err := answers.TakeBytes(t.Context(), "test", 4<<20-1, 0)
	require.NoError(t, err)
	defer more()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/search", strings.NewReader(`{"query":{"text":"a"}}`))
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, r)
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Contains(t, w.Body.String(), "pool.answer_bytes.share")
	f.api = func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"id":"`+strings.Repeat("x", 6<<10)+`"}`)
	}
	_, body := f.post(call("register_instance", `{"service":"a"}`))
	require.NotContains(t, body, "pool")
}

// silent is a client that takes nothing of an answer until taken is closed.
type unread struct {
	*httptest.ResponseRecorder
	begun, taken chan struct{}
	once         sync.Once
}

func (w *unread) Write(p []byte) (int, error) {
	w.once.Do(func() { w.begun <- struct{}{}; <-w.taken })
	return w.ResponseRecorder.Write(p)
}
