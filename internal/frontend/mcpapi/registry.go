package mcpapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// officialMeta is where clients of the registry look for the state of an entry.
const officialMeta = "io.modelcontextprotocol.registry/official"

// listed is an entry of the MCP registry, v0.1 (github.com/modelcontextprotocol/registry): an offer that declares MCP. Every offer has one version, the
// latest. What was measured stands beside it, with the names of the HTTP API.
type listed struct {
	Server map[string]any `json:"server"`
	Meta   map[string]any `json:"_meta"`

	vouched string // see entry
}

// listed returns the entry of a result; nil if it is none.
func (f *found) listed() (*listed, error) {
	e, err := f.entry()
	if err != nil || e.Type != serverType {
		return nil, err
	}
	server, _ := e.Data.(map[string]any)
	parts := strings.Split(e.Identifier, ":") // urn:air:PUBLISHER:TYPE:ID
	publisher := strings.Split(parts[2], ".")
	slices.Reverse(publisher) // names of the registry begin with the end of a domain
	server["name"], server["title"] = strings.Join(publisher, ".")+"/"+parts[len(parts)-1], e.Name
	server["description"] = cmp.Or(e.Description, e.Name)
	return &listed{Server: server, vouched: e.vouched, Meta: map[string]any{
		officialMeta:         map[string]any{"status": "active", "publishedAt": e.Updated, "updatedAt": e.Updated, "isLatest": true},
		"blackhole/measured": map[string]any{"peer": f.Peer, "endpoint": f.Endpoint, "domain": f.Domain},
	}}, nil
}

// servers returns a page of the entries of the network. A page may have fewer entries than its limit, or none, and a next one.
func (s *Server) servers(w http.ResponseWriter, r *http.Request, _ string) (any, error) {
	values, limit, since := r.URL.Query(), 30, time.Time{}
	var err error
	if text := values.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return nil, fault.Invalidf("limit", text, "must be a number above 0")
		}
		limit = min(limit, maxPage) // clients ask for more than a page has
	}
	if text := values.Get("updated_since"); text != "" {
		if since, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, fault.Invalidf("updated_since", text, "must be a time such as 2026-11-27T00:00:00Z")
		}
	}
	if v := values.Get("version"); v != "" && v != "latest" {
		return nil, fault.Invalidf("version", v, "must be latest: an offer has one version")
	}
	all, next, err := s.declared(w, r, map[string]any{"limit": limit, "after": values.Get("cursor")})
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(l *listed) bool {
		name, _ := l.Server["name"].(string)
		at, _ := time.Parse(time.RFC3339, l.Meta[officialMeta].(map[string]any)["updatedAt"].(string))
		return !strings.Contains(strings.ToLower(name), strings.ToLower(values.Get("search"))) || at.Before(since)
	})
	return registryPage(all, next), nil
}

func registryPage(all []*listed, next string) map[string]any {
	return map[string]any{"servers": append([]*listed{}, all...), "metadata": map[string]any{"count": len(all), "nextCursor": next}}
}

// declared asks for offers that declare MCP, in the order to page in.
func (s *Server) declared(w http.ResponseWriter, r *http.Request, query map[string]any) (all []*listed, next string, err error) {
	where, _ := query["where"].([]any)
	query["where"] = append(where, map[string]any{"field": "protocols", "op": "any", "values": choice{"mcp"}})
	query["types"], query["sort"] = searched(), "stable"
	body, _ := json.Marshal(query) // texts always have a JSON form
	var answer struct {
		Results  []found
		Next     string
		Complete bool
	}
	if err := s.results(r, http.MethodPost, pathQuery, body, &answer); err != nil {
		return nil, "", err
	}
	var vouched []string
	for n := range answer.Results {
		l, err := answer.Results[n].listed()
		if err != nil {
			return nil, "", err
		}
		if l != nil {
			all, vouched = append(all, l), append(vouched, l.vouched)
		}
	}
	s.prove(r, vouched)
	w.Header().Set("X-Blackhole-Complete", strconv.FormatBool(answer.Complete))
	return all, answer.Next, nil
}

// server returns the entry of a name.
func (s *Server) server(w http.ResponseWriter, r *http.Request, _ string) (any, error) {
	all, err := s.named(w, r)
	if err != nil {
		return nil, err
	}
	if v := r.PathValue("version"); v != "latest" && v != all[0].Server["version"] {
		return nil, fault.New("", fault.NotFound, "version %q is not there: %v is", v, all[0].Server["version"])
	}
	return all[0], nil
}

// serverVersions returns the entry of a name as a list.
func (s *Server) serverVersions(w http.ResponseWriter, r *http.Request, _ string) (any, error) {
	all, err := s.named(w, r)
	return registryPage(all, ""), err
}

func (s *Server) named(w http.ResponseWriter, r *http.Request) ([]*listed, error) {
	name := r.PathValue("name")
	_, id, _ := strings.Cut(name, "/")
	all, _, err := s.declared(w, r, map[string]any{"limit": maxPage, "where": []any{map[string]any{"field": "id", "op": "any", "values": choice{id}}}})
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(l *listed) bool { return l.Server["name"] != name })
	if len(all) == 0 {
		return nil, fault.New("", fault.NotFound, "no server has the name %q", name)
	}
	return all[:1], nil
}
