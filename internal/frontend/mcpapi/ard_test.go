package mcpapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/mcpapi"
)

type hit struct {
	Identifier, DisplayName, Type, URL, Source string
	Data                                       map[string]any
	Tags                                       []string
	Metadata                                   map[string]any
	Score                                      *int
}

// valid checks what the draft demands of every entry.
func valid(t *testing.T, e hit) {
	t.Helper()
	require.Regexp(t, regexp.MustCompile(`^urn:air:[a-zA-Z0-9.-]+(:[a-zA-Z0-9._-]+)+$`), e.Identifier)
	require.NotEmpty(t, e.DisplayName)
	require.Contains(t, e.Type, "application/")
	require.NotEqual(t, e.URL == "", e.Data == nil, "url or data, not both")
	for name, value := range e.Metadata {
		switch value.(type) {
		case string, float64, bool:
		default:
			require.Fail(t, "no plain value", "%s: %v", name, value)
		}
	}
}

func record(id, kind, more string) string {
	return fmt.Sprintf(`{"id":%q,"provider_id":"12D3KooW","updated_at":"2026-11-27T00:00:00Z","location":{"country":"DE","latitude":52.5},
		"pricing":{"base_price":2,"tier_pricing":{"1-9":1}},"metadata":{"type":%q%s}}`, id, kind, more)
}

// network answers like the HTTP API, and remembers the last query.
func network(f *front, answer string) *string {
	query := new(string)
	f.api = func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*query = string(body)
		if r.URL.Path == "/v1/discovery/records" {
			fmt.Fprintf(w, `{"records":[%s]}`, record("own", "compute", `,"name":"Own","attributes":{"a":"b"}`))
			return
		}
		_, _ = io.WriteString(w, answer)
	}
	return query
}

func (f *front) send(method, path, body string, into any) (int, http.Header) {
	f.t.Helper()
	r := httptest.NewRequestWithContext(f.t.Context(), method, path, strings.NewReader(body))
	r.Host = "peer.example:8500"
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, r)
	require.Equal(f.t, "application/json", w.Header().Get("Content-Type"))
	require.NoError(f.t, json.Unmarshal(w.Body.Bytes(), into), w.Body.String())
	return w.Code, w.Header()
}

func TestCatalog(t *testing.T) {
	f := start(t, nil)
	network(f, "")
	var c struct {
		SpecVersion string
		Host        struct{ DisplayName string }
		Entries     []hit
	}
	code, _ := f.send("GET", "/.well-known/ai-catalog.json", "", &c)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "1.0", c.SpecVersion)
	require.Equal(t, "peer.example:8500", c.Host.DisplayName)
	require.Len(t, c.Entries, 3)
	for _, e := range c.Entries {
		valid(t, e)
		require.Nil(t, e.Score)
	}
	require.Equal(t, "http://peer.example:8500", c.Entries[0].URL)
	require.Contains(t, fmt.Sprint(c.Entries[1].Data), "http://peer.example:8500/mcp")
	require.Equal(t, "urn:air:12D3KooW:compute:own", c.Entries[2].Identifier)
	require.Equal(t, "own", c.Entries[2].Data["id"])
}

type page struct {
	Results   []hit
	Referrals *[]any
	PageToken string
}

func TestSearch(t *testing.T) {
	f := start(t, nil)
	query := network(f, `{"total":3,"complete":true,"results":[
		{"record":`+record("a", "compute", `,"subtype":"gpu","name":"Berlin GPU"`)+`,"peer":{"state":"reachable","by":"self","round_trip_ms":1.5},"endpoint":{"state":"answers","by":"peers","peers":3}},
		{"record":`+record("b", "tool", `,"name":"Weather","domain":"weather.example","protocols":["mcp"],"endpoints":["mcp+https://weather.example/mcp"]`)+`,"domain":{"state":"checked","by":"self"},"endpoint":{"state":"refuses"}},
		{"record":`+record("c", "tool", `,"name":"Weather too","domain":"weather.example","protocols":["a2a"],"endpoints":["a2a+https://weather.example/.well-known/agent-card.json"]`)+`,"domain":{"state":"claimed"}}]}`)
	search := func(body string) (p page, complete string) {
		t.Helper()
		code, h := f.send("POST", "/search", body, &p)
		require.Equal(t, http.StatusOK, code)
		for _, e := range p.Results {
			valid(t, e)
			require.NotNil(t, e.Score)
			require.Equal(t, "http://peer.example:8500", e.Source)
		}
		return p, h.Get("X-Blackhole-Complete")
	}
	p, complete := search(`{"query":{"text":"Weather in Berlin","filter":{"location.country":"DE","metadata.compute.gpus.model":["H100","A100"]}},"federation":"referrals"}`)
	require.Equal(t, "true", complete)
	require.JSONEq(t, `{"types":["agent","bandwidth","cdn","compute","mcp","model","storage","tool"],"limit":250,"where":[
		{"field":"location.country","op":"any","values":["DE"]},{"field":"compute.gpus.model","op":"any","values":["H100","A100"]},
		{"field":"text","op":"any","values":["berlin","in","weather"]}]}`, sorted(t, *query))
	require.Len(t, p.Results, 3)
	require.Empty(t, *p.Referrals)
	require.Equal(t, 33, *p.Results[0].Score)
	require.Equal(t, "urn:air:12D3KooW:compute:a", p.Results[0].Identifier)
	require.Equal(t, "answers", p.Results[0].Metadata["endpoint.state"], "what was measured stands in the hit")
	require.Equal(t, 3.0, p.Results[0].Metadata["endpoint.peers"])
	require.Equal(t, 1.5, p.Results[0].Metadata["peer.round_trip_ms"])
	require.Equal(t, "urn:air:weather.example:tool:b", p.Results[1].Identifier, "the domain was checked")
	require.Equal(t, "application/mcp-server-card+json", p.Results[1].Type)
	require.Contains(t, fmt.Sprint(p.Results[1].Data["remotes"]), "https://weather.example/mcp")
	require.Equal(t, "urn:air:12D3KooW:tool:c", p.Results[2].Identifier, "it was not")
	require.Equal(t, []string{"application/a2a-agent-card+json", "https://weather.example/.well-known/agent-card.json"}, []string{p.Results[2].Type, p.Results[2].URL})
	require.Nil(t, p.Results[2].Data, "the agent has its card")

	p, _ = search(`{"query":{"text":"weather too"}}`)
	require.Equal(t, []string{"Weather too", "Weather"}, []string{p.Results[0].DisplayName, p.Results[1].DisplayName}, "more of the words come first, and none is no hit")
	require.Nil(t, p.Referrals)
	p, _ = search(`{"query":{"text":"weather","filter":{"type":"application/mcp-server-card+json"}}}`)
	require.Len(t, p.Results, 1)
	p, _ = search(`{"query":{"text":"gpu weather","filter":{"metadata.endpoint.state":["answers"],"tags":["gpu","cpu"],"metadata.type":["compute"]}}}`)
	require.Len(t, p.Results, 1)
	require.Contains(t, *query, `"types":["compute"]`)
	p, _ = search(`{"query":{"text":"weather berlin"},"pageSize":2}`)
	require.Len(t, p.Results, 2)
	p, _ = search(`{"query":{"text":"weather berlin"},"pageSize":2,"pageToken":"` + p.PageToken + `"}`)
	require.Len(t, p.Results, 1)
	require.Empty(t, p.PageToken)

	network(f, `{"total":9,"complete":true,"results":[]}`)
	p, complete = search(`{"query":{"text":"x"}}`)
	require.Empty(t, p.Results)
	require.Equal(t, "false", complete, "some were not read")
}

// TestReferrals: only a search that wants referrals gets them, with what the draft demands of each, and nobody is called.
func TestReferrals(t *testing.T) {
	urls := []string{"https://finder.example/search", "https://finder.example:8443/api/v1/search?of=a_b", "https://[2001:db8::1]/"}
	f := start(t, func(c *mcpapi.Config) { c.Referrals = urls })
	network(f, `{"results":[]}`)
	search := func(federation string) (p struct{ Referrals []map[string]any }) {
		code, _ := f.send("POST", "/search", `{"query":{"text":"a"}`+federation+`}`, &p)
		require.Equal(t, http.StatusOK, code)
		return p
	}
	for _, mode := range []string{"", `,"federation":"auto"`, `,"federation":"none"`} {
		require.Nil(t, search(mode).Referrals, mode)
	}
	entry := func(identifier, name, url string) map[string]any {
		return map[string]any{"identifier": identifier, "displayName": name, "type": "application/ai-registry+json", "url": url}
	}
	got := search(`,"federation":"referrals"`).Referrals
	require.Equal(t, []map[string]any{
		entry("urn:air:finder.example:registry:search", "finder.example", urls[0]),
		entry("urn:air:finder.example.8443:registry:api.v1.search.of.a.b", "finder.example:8443", urls[1]),
		entry("urn:air:2001.db8..1:registry:search", "[2001:db8::1]", urls[2]),
	}, got)
	for _, e := range got {
		valid(t, hit{Identifier: e["identifier"].(string), DisplayName: "a", Type: e["type"].(string), URL: e["url"].(string)})
	}
}

// sorted puts the clauses of a query into the order of the test.
func sorted(t *testing.T, query string) string {
	var q struct {
		Types []string         `json:"types"`
		Limit int              `json:"limit"`
		Where []map[string]any `json:"where"`
	}
	require.NoError(t, json.Unmarshal([]byte(query), &q))
	if len(q.Where) == 3 && q.Where[0]["field"] != "location.country" {
		q.Where[0], q.Where[1] = q.Where[1], q.Where[0]
	}
	text, err := json.Marshal(q)
	require.NoError(t, err)
	return string(text)
}

func TestRefusedSearches(t *testing.T) {
	f := start(t, nil)
	network(f, `{"results":[]}`)
	type refusal struct{ ErrorCode, Message string }
	for body, text := range map[string]string{
		`{`: "body", `[]`: "body", `{"query":{"text":" ,"}}`: "query.text", `{"query":{"text":"a"},"federation":"all"}`: "federation",
		`{"query":{"text":"a"},"pageSize":0}`: "pageSize", `{"query":{"text":"a"},"pageSize":101}`: "pageSize", `{"query":{"text":"a"},"pageToken":"x"}`: "pageToken",
		`{"query":{"text":"a"},"pageToken":"-1"}`: "pageToken", `{"query":{"text":"a","filter":{"x":1}}}`: "body", `{"query":{"text":"` + strings.Repeat("a", 64<<10) + `"}}`: "body",
	} {
		var e refusal
		code, _ := f.send("POST", "/search", body, &e)
		require.Equal(t, http.StatusBadRequest, code, body)
		require.Equal(t, "INVALID_ARGUMENT", e.ErrorCode)
		require.Contains(t, e.Message, text)
	}
	f.api = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":"validation_error","field":"where[0].field","message":"no field"}`)
	}
	var e refusal
	code, _ := f.send("POST", "/search", `{"query":{"text":"a","filter":{"none":"x"}}}`, &e)
	require.Equal(t, http.StatusBadRequest, code)
	require.Equal(t, refusal{"INVALID_ARGUMENT", "where[0].field no field"}, e)
	f.api = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	code, _ = f.send("GET", "/.well-known/ai-catalog.json", "", &e)
	require.Equal(t, http.StatusInternalServerError, code)
}
