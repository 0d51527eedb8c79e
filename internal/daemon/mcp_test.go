package daemon

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
)

// TestAgentsByMCP: a tool has the rights of its caller at the route that it calls, and web pages reach neither.
func TestAgentsByMCP(t *testing.T) {
	c := config.Default()
	c.Auth.Tokens = []config.Token{
		{Name: "reader", Token: func() string { return "reads" }, Role: "read-only"},
		{Name: "worker", Token: func() string { return "works" }, Role: "service", Services: []string{"jobs"}},
	}
	p := startWith(t, c, t.TempDir())
	call := func(token, origin, tool, args string) (int, string) {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.http+"/mcp", strings.NewReader(body))
		require.NoError(t, err)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	until(t, "a leader", func() bool {
		_, text := call("works", "", "grant_lease", `{"ttl":30}`)
		return strings.Contains(text, "structuredContent")
	})
	for _, c := range []struct{ token, origin, tool, args, text string }{
		{"", "", "list_services", "{}", "result"}, // as the HTTP API from this host
		{"", "", "grant_lease", `{"ttl":30}`, "unauth"},
		{"wrong", "", "list_services", "{}", "unauth"},
		{"works", "https://evil.example", "list_services", "{}", "cross-origin"},
		{"reads", "", "list_services", "{}", "result"},
		{"reads", "", "grant_lease", `{"ttl":30}`, "forbidden"},
		{"works", "", "take_lock", `{"name":"other","lease_id":"1"}`, "forbidden"},
	} {
		_, text := call(c.token, c.origin, c.tool, c.args)
		require.Contains(t, text, c.text, c.tool)
	}
	code, _ := call("wrong", "", "list_services", "{}")
	require.Equal(t, http.StatusUnauthorized, code)
}
