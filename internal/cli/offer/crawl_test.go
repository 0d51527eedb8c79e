package offer

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// TestCatalog: MCP servers and agents with an address become offers with ids that stay the same.
func TestCatalog(t *testing.T) {
	none := func(string) ([]byte, error) { return nil, errors.New("down") }
	offers, left, down, err := offersOf([]byte(`{"specVersion":"1.0","entries":[
		{"identifier":"urn:air:weather.example:tool:Rain_1","displayName":"Rain","type":"application/mcp-server-card+json","description":"Forecasts","data":{"version":"2.1.0","remotes":[{"type":"streamable-http","url":"https://weather.example/mcp"}]}},
		{"identifier":"urn:air:a.example:agent","displayName":"Agent","type":"application/a2a-agent-card+json","version":"3","url":"https://a.example/card.json"},
		{"identifier":"urn:air:a.example:program","displayName":"Program","type":"application/mcp-server-card+json","data":{"remotes":[]}},
		{"identifier":"urn:air:a.example:search","displayName":"Search","type":"application/ai-registry+json","url":"https://a.example"},
		{"identifier":"urn:air:b.example:gone","displayName":"Gone","type":"application/mcp-server-card+json","url":"https://b.example/mcp"}]}`), none)
	require.NoError(t, err)
	require.Equal(t, []int{2, 1}, []int{left, down})
	require.Equal(t, []records.Offer{
		{ID: "weather.example-tool-rain_1", Metadata: records.Metadata{Type: "mcp", Name: "Rain", Description: "Forecasts", Version: "2.1.0", Protocols: []string{"mcp"}, Endpoints: []string{"https://weather.example/mcp"}}},
		{ID: "a.example-agent", Metadata: records.Metadata{Type: "agent", Name: "Agent", Version: "3", Protocols: []string{"a2a"}, Endpoints: []string{"https://a.example/card.json"}}},
	}, offers)
	offers, _, _, err = offersOf([]byte(`{"entries":[{"identifier":"a","displayName":"\u202eRain\u001b","description":"Two\nlines `+strings.Repeat("é", 600)+
		`","type":"application/mcp-server-card+json","data":{"remotes":[{"url":"https://weather.example/mcp"}]}}]}`), none)
	require.NoError(t, err)
	require.NoError(t, offers[0].Validate(), "texts of a stranger keep no entry out")
	require.Equal(t, "\ufffdRain\ufffd", offers[0].Metadata.Name)
	require.Contains(t, offers[0].Metadata.Description, "Two lines é")
	long := idOf("urn:air:" + strings.Repeat("x", 70) + ":a")
	require.Len(t, long, maxID)
	require.NotEqual(t, long, idOf("urn:air:"+strings.Repeat("x", 70)+":b"))
	_, _, _, err = offersOf([]byte("<html>"), none)
	require.ErrorIs(t, err, fault.Invalid)
}

// TestCatalogOfURL: a URL without a path has its catalog at the well-known one, and what is no catalog is an error.
func TestCatalogOfURL(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/ai-catalog.json":
			_, _ = w.Write([]byte("{}"))
		case "/away":
			http.Redirect(w, r, "/.well-known/ai-catalog.json", http.StatusFound)
		case "/large":
			_, _ = w.Write(make([]byte, maxCatalog+1))
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	for path, want := range map[string]error{"": nil, "/": nil, "/x": fault.NotFound, "/away": fault.Unprocessable, "/large": fault.TooLarge} {
		text, err := catalogOf(t.Context(), &term.Console{}, s.URL+path)
		require.ErrorIs(t, err, want, path)
		if want == nil {
			require.Equal(t, "{}", string(text))
		}
	}
}

// An entry by reference has its endpoint in the card there, or is the server itself. A site that is down is told from one that has nothing.
func TestCatalogOfReferences(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/card.json":
			_, _ = w.Write([]byte(`{"name":"a","remotes":[{"url":"https://a.example/mcp"}]}`))
		case "/mcp":
			w.WriteHeader(http.StatusMethodNotAllowed)
		default:
			http.NotFound(w, r)
		}
	}))
	get := func(at string) ([]byte, error) { return fetch(t.Context(), at, maxCard) }
	require.Equal(t, "https://a.example/mcp", serverAt(s.URL+"/card.json", get))
	require.Equal(t, s.URL+"/mcp", serverAt(s.URL+"/mcp", get))
	require.Empty(t, serverAt(s.URL+"/none", get))
	s.Close()
	_, err := get(s.URL + "/card.json")
	require.ErrorIs(t, err, fault.Unprocessable)
	require.ErrorContains(t, err, "does not answer")
	require.Empty(t, serverAt(s.URL+"/mcp", get))
}

// A site of the caller's own network may have a catalog, a metadata service none.
func TestCrawlAsksNoMetadata(t *testing.T) {
	for _, site := range []string{"http://169.254.169.254", "http://[fd00:ec2::254]", "http://100.100.100.200", "http://[::ffff:169.254.169.254]"} {
		_, err := catalogOf(t.Context(), &term.Console{}, site)
		require.ErrorContains(t, err, "must not connect", site)
	}
}
