// Package mcpclient plays the official Go client of the Model Context Protocol against a peer, over HTTP and over the command mcp.
package mcpclient

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

const referral = "https://finder.example/search"

func TestAgents(t *testing.T) {
	program := peers.Build(t)
	t.Parallel()
	g := peers.New(t, 1, peers.Options{Program: program, Env: []string{"BLACKHOLE_ARD_REFERRALS=" + referral}})
	address := g.Peers[0].HTTP
	send(t, "POST", address+"/v1/services/tool/instances", `{"id": "tool-1", "host": "127.0.0.1", "port": 9000, "remove_after": "never"}`, http.StatusCreated)
	send(t, "POST", address+"/v1/discovery/records", `{"id": "a.b", "capabilities": {"compute": {"cpu_cores": 8, "memory_mb": 16000}}, "location": {"country": "DE", "latitude": 52.52, "longitude": 13.405},
		"metadata": {"name": "gpu", "type": "compute"}, "health": {"status": "HEALTHY"}, "pricing": {"base_price": 1, "currency": "USDC", "price_unit": "per-hour"}}`, http.StatusCreated)
	resources(t, address)
	for name, transport := range map[string]func() mcp.Transport{
		"http": func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: "http://" + address + "/mcp"} },
		"stdio": func() mcp.Transport {
			return &mcp.CommandTransport{Command: exec.Command(program, "mcp", "--http", address)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := mcp.NewClient(&mcp.Implementation{Name: "prover", Version: "1"}, nil).Connect(t.Context(), transport(), nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			a := agent{t, c}
			require.Equal(t, "blackholed", c.InitializeResult().ServerInfo.Name)
			t.Logf("revision %s", c.InitializeResult().ProtocolVersion)
			if c.InitializeResult().ProtocolVersion < "2026" { // later ones have no ping
				require.NoError(t, c.Ping(t.Context(), nil))
			}
			a.tools()
			a.offers()
			a.instances(address)
			a.locks(name)
			a.resources()
		})
	}
}

type agent struct {
	t *testing.T
	*mcp.ClientSession
}

// call calls a tool, and returns its structured answer.
func (a agent) call(tool string, args map[string]any) map[string]any {
	a.t.Helper()
	got, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	require.NoError(a.t, err)
	require.False(a.t, got.IsError, "%s", text(got))
	out, ok := got.StructuredContent.(map[string]any)
	require.True(a.t, ok, "%s", text(got))
	return out
}

// refused calls a tool, and returns the text of its error.
func (a agent) refused(tool string, args map[string]any) string {
	a.t.Helper()
	got, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	require.NoError(a.t, err)
	require.True(a.t, got.IsError, "%s", text(got))
	return text(got)
}

func text(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if one, ok := c.(*mcp.TextContent); ok {
			all = append(all, one.Text)
		}
	}
	return strings.Join(all, "\n")
}

func (a agent) tools() {
	list, err := a.ListTools(a.t.Context(), nil)
	require.NoError(a.t, err)
	require.Len(a.t, list.Tools, 10)
	for _, tool := range list.Tools {
		schema, err := json.Marshal(tool.InputSchema)
		require.NoError(a.t, err)
		require.Contains(a.t, string(schema), `"type":"object"`, tool.Name)
	}
	_, err = a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: "none"})
	require.ErrorContains(a.t, err, "no tool")
}

func (a agent) offers() {
	found := a.call("find_offers", map[string]any{"type": "compute", "health": "any", "max_price": 2, "min_cpu_cores": 4})
	require.Len(a.t, found["results"], 1)
	require.Contains(a.t, found, "complete")
	require.Empty(a.t, a.call("find_offers", map[string]any{"type": "compute", "health": "any", "max_price": 0.5})["results"])
	require.Len(a.t, a.call("search", map[string]any{"words": "a gpu in Berlin"})["results"], 1)
	require.Contains(a.t, a.call("find_offers", map[string]any{"type": "compute", "health": "any", "max_price": 0.5, "explain": true})["notes"], "known records: 0 match, 1 left out")
	require.Contains(a.t, a.refused("find_offers", map[string]any{"type": "compute", "near": map[string]any{"latitude": 99, "longitude": 0}}), "latitude")
	require.Contains(a.t, a.refused("find_offers", map[string]any{"kind": "compute"}), "kind")
}

func (a agent) instances(address string) {
	found := a.call("find_instances", map[string]any{"service": "tool"})
	require.Len(a.t, found["instances"], 1)
	require.Contains(a.t, a.refused("find_instances", map[string]any{"service": "tool", "health": "good"}), "health")
	list, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: "list_services", Arguments: map[string]any{"limit": 5}})
	require.NoError(a.t, err)
	require.Contains(a.t, text(list), "tool-1")
	changed := make(chan map[string]any, 1)
	go func() {
		changed <- a.call("watch_instances", map[string]any{"service": "tool", "index": found["index"], "wait": "1m"})
	}()
	send(a.t, "POST", address+"/v1/services/tool/instances", `{"id": "tool-2", "host": "127.0.0.1", "port": 9001, "remove_after": "never"}`, http.StatusCreated)
	require.Len(a.t, (<-changed)["instances"], 2)
	send(a.t, "DELETE", address+"/v1/services/tool/instances/tool-2", "", http.StatusNoContent)
}

func (a agent) locks(name string) {
	lock := "agents/" + name
	one := map[string]any{"names": []string{lock, lock + "/2"}, "agent": name + "/one", "ttl": 30}
	two := map[string]any{"names": []string{lock + "/2"}, "agent": name + "/two", "ttl": 30}
	held := a.call("hold", one)
	require.Equal(a.t, true, held["holding"])
	require.Equal(a.t, held["tokens"], a.call("hold", one)["tokens"], "a repeated call changes nothing")
	require.Equal(a.t, false, a.call("hold", two)["holding"])
	require.Contains(a.t, fmt.Sprint(a.call("held", map[string]any{"names": []string{lock}})["names"]), name+"/one")
	a.call("release", map[string]any{"agent": name + "/one"})
	next := a.call("hold", two)
	require.Equal(a.t, true, next["holding"])
	require.NotEqual(a.t, held["tokens"].(map[string]any)[lock+"/2"], next["tokens"].(map[string]any)[lock+"/2"])
	a.call("release", map[string]any{"agent": name + "/two"})
	require.Contains(a.t, a.refused("hold", nil), "names of hold is missing")
}

func (a agent) resources() {
	list, err := a.ListResources(a.t.Context(), nil)
	require.NoError(a.t, err)
	for _, r := range list.Resources {
		got, err := a.ReadResource(a.t.Context(), &mcp.ReadResourceParams{URI: r.URI})
		require.NoError(a.t, err, r.URI)
		require.True(a.t, json.Valid([]byte(got.Contents[0].Text)), r.URI)
	}
	templates, err := a.ListResourceTemplates(a.t.Context(), nil)
	require.NoError(a.t, err)
	uri := strings.Replace(templates.ResourceTemplates[0].URITemplate, "{service}", "tool", 1)
	got, err := a.ReadResource(a.t.Context(), &mcp.ReadResourceParams{URI: uri})
	require.NoError(a.t, err)
	require.Contains(a.t, got.Contents[0].Text, "tool-1")
	_, err = a.ReadResource(a.t.Context(), &mcp.ReadResourceParams{URI: "blackhole:///v1/events"})
	require.ErrorContains(a.t, err, "no resource")
}

// resources looks for the offer by Agentic Resource Discovery.
func resources(t *testing.T, address string) {
	catalog := read(t, "GET", address+"/.well-known/ai-catalog.json", "")
	require.Len(t, catalog["entries"], 3)
	drafted(t, "", catalog)
	answer := read(t, "POST", address+"/search", `{"query": {"text": "a GPU in Berlin", "filter": {"location.country": "DE"}}, "federation": "referrals"}`)
	drafted(t, "SearchResponse", answer)
	require.Equal(t, referral, answer["referrals"].([]any)[0].(map[string]any)["url"])
	found := answer["results"].([]any)
	require.Len(t, found, 1)
	entry := found[0].(map[string]any)
	require.Equal(t, "gpu", entry["displayName"])
	require.Equal(t, "reachable", entry["metadata"].(map[string]any)["peer.state"])
	require.Empty(t, read(t, "POST", address+"/search", `{"query": {"text": "gpu", "filter": {"location.country": "FR"}}}`)["results"])
}

// drafted holds an answer against a definition of the draft's schema; "": a catalog.
func drafted(t *testing.T, definition string, answer map[string]any) {
	text, err := os.ReadFile("testdata/ard.schema.json")
	require.NoError(t, err)
	schema := new(jsonschema.Schema)
	require.NoError(t, json.Unmarshal(text, schema))
	if definition != "" {
		schema = &jsonschema.Schema{Schema: schema.Schema, Defs: schema.Defs, Ref: "#/$defs/" + definition}
	}
	resolved, err := schema.Resolve(nil)
	require.NoError(t, err)
	require.NoError(t, resolved.Validate(answer), "%v", answer)
	require.Error(t, resolved.Validate(map[string]any{}))
}

func read(t *testing.T, method, url, body string) (v map[string]any) {
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+url, strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&v))
	require.Equal(t, http.StatusOK, answer.StatusCode, v)
	return v
}

func send(t *testing.T, method, url, body string, want int) {
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+url, strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, want, answer.StatusCode, "%s %s", method, url)
}
