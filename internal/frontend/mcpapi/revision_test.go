package mcpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const newest = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// modern asks by the stateless revision, with the headers of a client of it.
func (f *front) modern(method, params string, header ...string) (code int, m struct {
	ID     int
	Result map[string]any
	Error  map[string]any
}) {
	f.t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":%q,"params":{%s}}`, method, params)
	code, text := f.post(body, append([]string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method}, header...)...)
	require.NoError(f.t, json.Unmarshal([]byte(text), &m), text)
	require.Equal(f.t, 3, m.ID, "a client knows whose answer it is")
	return code, m
}

// A client of the stateless revision needs no handshake, and each result says who gave it.
func TestStateless(t *testing.T) {
	f := start(t, nil)
	code, m := f.modern("server/discover", newest)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "complete", m.Result["resultType"])
	require.Equal(t, []any{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"}, m.Result["supportedVersions"])
	page, err := os.ReadFile("../../../docs/protocols.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "| "+strings.ReplaceAll(strings.Trim(fmt.Sprint(m.Result["supportedVersions"]), "[]"), " ", ", ")+" |", "the page has a row of it")
	require.Equal(t, "public", m.Result["cacheScope"])
	require.Contains(t, fmt.Sprint(m.Result["_meta"]), "blackholed")
	_, m = f.modern("tools/list", newest)
	require.NotEmpty(t, m.Result["tools"])
	require.Positive(t, m.Result["ttlMs"])
	_, m = f.modern("tools/call", newest+`,"name":"list_services"`, "Mcp-Name", "list_services")
	require.Equal(t, "GET /v1/services", m.Result["structuredContent"].(map[string]any)["asked"])
	require.Equal(t, "complete", m.Result["resultType"])
	_, m = f.modern("resources/read", newest+`,"uri":"blackhole:///v1/status"`, "Mcp-Name", "=?base64?YmxhY2tob2xlOi8vL3YxL3N0YXR1cw==?=")
	require.Equal(t, []any{0.0, "private"}, []any{m.Result["ttlMs"], m.Result["cacheScope"]})
	_, m = f.modern("resources/read", newest+`,"uri":"file:///a"`, "Mcp-Name", "file:///a")
	require.Equal(t, -32602.0, m.Error["code"], "in this revision")
}

// What a stateless request lacks is refused with the code of its kind, and the id of the request.
func TestStatelessRefused(t *testing.T) {
	f := start(t, nil)
	for _, c := range []struct {
		method, params string
		header         []string
		status         int
		code           float64
	}{
		{"ping", newest, nil, 404, -32601},
		{"initialize", newest, nil, 404, -32601},
		{"prompts/list", newest, nil, 404, -32601},
		{"tools/list", "", nil, 400, -32602},
		{"tools/list", `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`, nil, 400, -32602},
		{"tools/list", `"_meta":{"io.modelcontextprotocol/protocolVersion":1}`, nil, 400, -32602},
		{"tools/list", strings.Replace(newest, "2026-07-28", "2030-01-01", 1), []string{"MCP-Protocol-Version", "2030-01-01"}, 400, -32022},
		{"tools/list", strings.Replace(newest, "2026-07-28", "2030-01-01", 1), nil, 400, -32020},
		{"tools/list", newest, []string{"MCP-Protocol-Version", "2025-11-25"}, 400, -32020},
		{"tools/list", newest, []string{"MCP-Protocol-Version", ""}, 400, -32020},
		{"tools/list", newest, []string{"Mcp-Method", "ping"}, 400, -32020},
		{"tools/call", newest + `,"name":"list_services"`, nil, 400, -32020},
		{"tools/call", newest + `,"name":"list_services"`, []string{"Mcp-Name", "hold"}, 400, -32020},
	} {
		status, m := f.modern(c.method, c.params, c.header...)
		require.Equal(t, c.status, status, "%+v", c)
		require.Equal(t, c.code, m.Error["code"], "%+v", c)
	}
}

// Clients of revision 2025-03-26 send batches. Later ones do not, and learn why.
func TestBatches(t *testing.T) {
	f := start(t, nil)
	two := `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":"b","method":"none"}]`
	for _, header := range [][]string{nil, {"MCP-Protocol-Version", "2025-03-26"}} {
		code, body := f.post(two, header...)
		require.Equal(t, http.StatusOK, code)
		require.JSONEq(t, `[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":"b","error":{"code":-32601,"message":"this server has no method \"none\""}}]`, body)
	}
	code, body := f.post(two, "MCP-Protocol-Version", "2025-06-18")
	require.Equal(t, http.StatusBadRequest, code)
	require.Contains(t, body, "has no batches")
	code, _ = f.post(`[{"jsonrpc":"2.0","method":"notifications/initialized"}]`)
	require.Equal(t, http.StatusAccepted, code)
	_, body = f.post(`[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]`)
	require.Contains(t, body, "stands alone")
	_, body = f.post("[" + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 16) + `{"jsonrpc":"2.0","id":1,"method":"ping"}]`)
	require.Contains(t, body, "1 to 16 messages, not 17")
}

// The handshake ignores the header, and knows the oldest revision from the command mcp alone.
func TestHandshakes(t *testing.T) {
	f := start(t, nil)
	for _, c := range [][3]string{
		{"2024-11-05", "2024-11-05", "2024-11-05"}, {"2024-11-05", "", "2025-11-25"}, {"2026-07-28", "2026-07-28", "2025-11-25"}, {"2025-06-18", "1999-01-01", "2025-06-18"},
	} {
		_, body := f.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q}}`, c[0]), "MCP-Protocol-Version", c[1])
		require.Contains(t, body, fmt.Sprintf(`"protocolVersion":%q`, c[2]), "%v", c)
	}
}

// Who listens hears of changes of the instances that it names, and of nothing else.
func TestListen(t *testing.T) {
	f := start(t, nil)
	index := make(chan int)
	f.api = func(w http.ResponseWriter, r *http.Request) {
		select {
		case n := <-index:
			_, _ = fmt.Fprintf(w, `{"index":%d}`, n)
		case <-r.Context().Done():
		}
	}
	server := httptest.NewServer(f.mux)
	defer server.Close()
	params := newest + `,"notifications":{"toolsListChanged":true,"resourceSubscriptions":["blackhole:///v1/services/mail/instances","blackhole:///v1/status"]}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/mcp/", strings.NewReader(`{"jsonrpc":"2.0","id":"s","method":"subscriptions/listen","params":{`+params+`}}`))
	require.NoError(t, err)
	r.Header.Set("MCP-Protocol-Version", "2026-07-28")
	r.Header.Set("Mcp-Method", "subscriptions/listen")
	answer, err := server.Client().Do(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	lines := bufio.NewScanner(answer.Body)
	next := func() (m map[string]any) {
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				require.NoError(t, json.Unmarshal([]byte(text), &m))
				return m
			}
		}
		require.Fail(t, "the stream ended", "%v", lines.Err())
		return nil
	}
	of := func(params map[string]any) map[string]any {
		params["_meta"] = map[string]any{"io.modelcontextprotocol/subscriptionId": "s"}
		return params
	}
	require.Equal(t, map[string]any{"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": of(map[string]any{
		"notifications": map[string]any{"resourceSubscriptions": []any{"blackhole:///v1/services/mail/instances"}},
	})}, next())
	for _, n := range []int{4, 4, 5} { // the first answer is the present, and a wait without a change ends too
		index <- n
	}
	require.Equal(t, map[string]any{"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": of(map[string]any{
		"uri": "blackhole:///v1/services/mail/instances",
	})}, next())
}
