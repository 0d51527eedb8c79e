package mcpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/frontend/mcpapi"
)

type listed struct {
	Server struct {
		Name, Title, Description, Version string
		Remotes                           []struct{ Type, URL string }
	}
	Meta map[string]map[string]any `json:"_meta"`
}

// TestRegistry: clients of the MCP registry find offers that declare MCP, with what was measured.
func TestRegistry(t *testing.T) {
	f := start(t, nil)
	query := network(f, `{"complete":true,"next":"12D3KooW/c","results":[
		{"record":`+record("b", "tool", `,"name":"Weather","version":"1.2.0","domain":"weather.example","protocols":["mcp"],"endpoints":["mcp+https://weather.example/mcp"]`)+`,"domain":{"state":"checked","by":"self"},"endpoint":{"state":"answers"}},
		{"record":`+record("c", "tool", `,"name":"Claimed","version":"1.0.0","domain":"weather.example","protocols":["mcp"],"endpoints":["https://other.example/mcp"]`)+`},
		{"record":`+record("d", "tool", `,"name":"Program","protocols":["mcp"],"endpoints":["stdio://x"]`)+`}]}`)
	var p struct {
		Servers  []listed
		Metadata struct {
			Count      int
			NextCursor string
		}
	}
	get := func(path string) {
		t.Helper()
		p.Servers = nil
		code, h := f.send("GET", "/v0.1/servers"+path, "", &p)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "true", h.Get("X-Blackhole-Complete"))
	}
	get("?limit=3&cursor=12D3KooW%2Fa")
	require.JSONEq(t, `{"types":["agent","bandwidth","cdn","compute","mcp","model","storage","tool"],"limit":3,"after":"12D3KooW/a","sort":"stable",
		"where":[{"field":"protocols","op":"any","values":["mcp"]}]}`, *query)
	require.Len(t, p.Servers, 2, "one has no address to call")
	require.Equal(t, []any{2, "12D3KooW/c"}, []any{p.Metadata.Count, p.Metadata.NextCursor})
	one := p.Servers[0]
	require.Equal(t, []string{"example.weather/b", "Weather", "Weather", "1.2.0"}, []string{one.Server.Name, one.Server.Title, one.Server.Description, one.Server.Version})
	require.Equal(t, "https://weather.example/mcp", one.Server.Remotes[0].URL)
	require.Equal(t, true, one.Meta["io.modelcontextprotocol.registry/official"]["isLatest"])
	require.Equal(t, "answers", one.Meta["blackhole/measured"]["endpoint"].(map[string]any)["state"])
	require.Equal(t, "12D3KooW/c", p.Servers[1].Server.Name, "nobody checked the domain")

	get("?search=WEATHER")
	require.Len(t, p.Servers, 1)
	get("?updated_since=2026-11-28T00:00:00Z&version=latest")
	require.NotNil(t, p.Servers)
	require.Empty(t, p.Servers)
	get("/example.weather%2Fb/versions")
	require.Len(t, p.Servers, 1)
	require.Contains(t, *query, `"values":["b"]`)

	code, _ := f.send("GET", "/v0.1/servers/example.weather%2Fb/versions/latest", "", &one)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "Weather", one.Server.Title)
	for path, want := range map[string]int{
		"?limit=0": 400, "?limit=no": 400, "?updated_since=today": 400, "?version=1.0.0": 400, "/example.weather%2Fx/versions": 404,
		"/example.weather%2Fb/versions/9": 404, "/example.weather%2Fb/versions/1.2.0": 200,
	} {
		var answer map[string]any
		code, _ := f.send("GET", "/v0.1/servers"+path, "", &answer)
		require.Equal(t, want, code, "%s: %v", path, answer)
	}
}

// TestStrangersNameNoEntry: a domain names an entry of a catalog only if this peer checked it. While only others did,
// this peer begins to.
func TestStrangersNameNoEntry(t *testing.T) {
	f := start(t, nil)
	query := network(f, `{"total":1,"complete":true,"results":[
		{"record":`+record("b", "tool", `,"name":"Weather","domain":"weather.example","protocols":["mcp"],"endpoints":["https://weather.example/mcp"]`)+`,"domain":{"state":"checked","by":"peers","peers":9}}]}`)
	var list struct{ Servers []listed }
	code, _ := f.send("GET", "/v0.1/servers", "", &list)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "12D3KooW/b", list.Servers[0].Server.Name)
	asks := `{"domain":"*","limit":100,"types":["agent","bandwidth","cdn","compute","mcp","model","storage","tool"],"where":[{"field":"domain","op":"any","values":["weather.example"]}]}`
	require.JSONEq(t, asks, *query)
	*query = ""
	var p page
	code, _ = f.send("POST", "/search", `{"query":{"text":"weather"}}`, &p)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "urn:air:12D3KooW:tool:b", p.Results[0].Identifier)
	require.JSONEq(t, asks, *query)
	code, _ = f.send("GET", "/v0.1/servers/example.weather%2Fb/versions/latest", "", &list)
	require.Equal(t, http.StatusNotFound, code)
}

// Pages of any origin may read what is public, as editors do, and nothing else.
func TestPublicPathsOfAnyOrigin(t *testing.T) {
	s := httpapi.New(httpapi.Config{Others: mcpapi.New(mcpapi.Config{API: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"complete":true,"results":[]}`)
	})}).Routes()})
	for _, c := range []struct {
		method, path, token, allowed string
		code                         int
	}{
		{"GET", "/v0.1/servers", "", "*", 200}, {"GET", "/v0.1/servers/", "", "*", 200}, {"GET", "/v0.1/servers?limit=200", "", "*", 200},
		{"GET", "/.well-known/ard.json", "", "*", 200}, {"GET", "/agents/urn:air:a:compute:b", "", "*", 404},
		{"GET", "/v0.1/servers", "Bearer t", "", 403}, {"POST", "/mcp", "", "", 403}, {"GET", "/v1/services", "", "", 403},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader("{}"))
		r.Host = "localhost:8500"
		r.Header.Set("Origin", "https://editor.example")
		if c.token != "" {
			r.Header.Set("Authorization", c.token)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		require.Equal(t, c.code, w.Code, "%+v: %s", c, w.Body)
		require.Equal(t, c.allowed, w.Header().Get("Access-Control-Allow-Origin"), "%+v", c)
	}
}
