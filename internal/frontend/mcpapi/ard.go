package mcpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Media types of entries.
const (
	offerType    = "application/vnd.blackhole.offer+json"
	agentType    = "application/a2a-agent-card+json"
	serverType   = "application/mcp-server-card+json"
	registryType = "application/ai-registry+json"
)

const (
	maxPage   = 100
	maxWords  = 64  // of a search: as many as a clause has values
	maxRanked = 250 // offers that the text of a search puts into an order: below maxAnswer, also if all are large
)

// searched are the types of offers that a search without the filter metadata.type looks at: as many as one query may name.
func searched() choice {
	return choice{"agent", "bandwidth", "cdn", "compute", "mcp", "model", "storage", "tool"}
}

// entry is one of a catalog of Agentic Resource Discovery, draft 0.9 (github.com/ards-project/ard-spec), and a hit of a search. Its metadata has the
// names of the HTTP API, with what was measured of the peer, the endpoint and the domain. The identifier begins with
// the domain if this peer checked the claim itself, otherwise with the provider's id, which is no domain as the draft
// demands it: most providers have none.
type entry struct {
	Identifier  string         `json:"identifier"`
	Name        string         `json:"displayName"`
	Type        string         `json:"type"`
	URL         string         `json:"url,omitempty"`
	Data        any            `json:"data,omitempty"`
	Description string         `json:"description,omitempty"`
	Tags        []string       `json:"tags,omitempty"`
	Version     string         `json:"version,omitempty"`
	Updated     string         `json:"updatedAt,omitempty"`
	Metadata    map[string]any `json:"metadata,omitempty"`
	Trust       map[string]any `json:"trustManifest,omitempty"`
	Score       *int           `json:"score,omitempty"`
	Source      string         `json:"source,omitempty"`

	vouched string // a domain that only others checked: strangers name no entry
}

// found is a result of the HTTP API. A search reads many and shows few, so what was measured stays text until then.
type found struct {
	Record                 json.RawMessage
	Peer, Endpoint, Domain json.RawMessage // measured
}

func (f *found) entry() (e entry, err error) {
	var o struct {
		ID       string `json:"id"`
		Provider string `json:"provider_id"`
		Updated  string `json:"updated_at"`
		Metadata struct {
			Name, Type, Subtype, Description, Version, Domain string
			Endpoints, Protocols                              []string
		}
		Location, Pricing map[string]any
	}
	if err := json.Unmarshal(f.Record, &o); err != nil {
		return e, fault.As("mcpapi", fault.Internal, err)
	}
	var peer, endpoint, domain map[string]any // stay empty if nothing was measured
	for text, to := range map[*json.RawMessage]*map[string]any{&f.Peer: &peer, &f.Endpoint: &endpoint, &f.Domain: &domain} {
		_ = json.Unmarshal(*text, to)
	}
	m, publisher, vouched := &o.Metadata, o.Provider, ""
	switch {
	case domain["state"] != "checked":
	case domain["by"] == "self":
		publisher = m.Domain
	default:
		vouched = m.Domain
	}
	e = entry{
		Identifier: "urn:air:" + publisher + ":" + m.Type + ":" + o.ID, Name: cmp.Or(m.Name, o.ID), Type: offerType, Data: f.Record, Description: m.Description,
		Tags: slices.DeleteFunc(append([]string{m.Type, m.Subtype}, m.Protocols...), func(t string) bool { return t == "" }), Version: m.Version, Updated: o.Updated,
		Metadata: map[string]any{"type": m.Type, "provider_id": o.Provider}, Trust: map[string]any{"identity": o.Provider, "identityType": "other"},
		vouched: vouched,
	}
	for part, fields := range map[string]map[string]any{"location": o.Location, "pricing": o.Pricing, "peer": peer, "endpoint": endpoint, "domain": domain} {
		for name, value := range fields {
			switch value.(type) {
			case string, float64, bool:
				e.Metadata[part+"."+name] = value
			}
		}
	}
	for _, at := range m.Endpoints {
		switch at = strings.TrimPrefix(strings.TrimPrefix(at, "mcp+"), "a2a+"); {
		case e.Type != offerType || !strings.HasPrefix(at, "http"):
		case slices.Contains(m.Protocols, "mcp"):
			e.Type, e.Data = serverType, card(e.Name, m.Description, m.Version, at)
		case slices.Contains(m.Protocols, "a2a") && strings.HasSuffix(at, ".json"): // only the agent itself has its card
			e.Type, e.URL, e.Data = agentType, at, nil
		}
	}
	return e, nil
}

// card is that of an MCP server.
func card(name, description, version, at string) map[string]any {
	return map[string]any{"name": name, "description": description, "version": version, "remotes": []map[string]string{{"type": "streamable-http", "url": at}}}
}

// between reports whether a character stands between words.
func between(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }

// words are the different words of a text, in lower case.
func words(text string) []string {
	all := strings.FieldsFunc(strings.ToLower(text), between)
	slices.Sort(all)
	return slices.Compact(all)
}

// score is the share of words that a record has, in percent. It looks for each word where it stands: to cut the whole text into words costs more than
// all the rest of a search.
func score(record []byte, asked []string) int {
	text, some := bytes.ToLower(record), 0
	for _, word := range asked {
		if has(text, word) {
			some++
		}
	}
	return 100 * some / len(asked)
}

func has(text []byte, word string) bool {
	for from := 0; ; {
		at := bytes.Index(text[from:], []byte(word))
		if at < 0 {
			return false
		}
		at, from = from+at, from+at+len(word)
		before, _ := utf8.DecodeLastRune(text[:at])
		after, _ := utf8.DecodeRune(text[from:])
		if between(before) && between(after) { // beyond the text too
			return true
		}
	}
}

// fits reports whether an entry passes a filter that is not about offers; other ones have passed by the query.
func (e *entry) fits(key string, values choice) bool {
	switch field := strings.TrimPrefix(key, "metadata."); {
	case key == "type":
		return slices.Contains(values, e.Type)
	case key == "tags":
		return slices.ContainsFunc(e.Tags, func(t string) bool { return slices.Contains(values, t) })
	case measured(key):
		return slices.Contains(values, fmt.Sprint(e.Metadata[field]))
	}
	return true
}

func measured(key string) bool {
	return slices.ContainsFunc([]string{"metadata.peer.", "metadata.endpoint.", "metadata.domain."}, func(p string) bool { return strings.HasPrefix(key, p) })
}

// choice is a value, or a list of values of which one must fit.
type choice []string

// UnmarshalJSON implements json.Unmarshaler.
func (c *choice) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, (*[]string)(c))
	}
	*c = choice{""}
	return json.Unmarshal(text, &(*c)[0])
}

// resources answers by the draft: errors have a form of their own.
func (s *Server) resources(serve func(http.ResponseWriter, *http.Request, string) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, end := holding(r)
		defer end()
		here := "http://" + r.Host
		if r.TLS != nil {
			here = "https://" + r.Host
		}
		v, err := serve(w, r, here)
		if err == nil {
			err = s.send(w, r, http.StatusOK, v)
		}
		if err == nil {
			return
		}
		code, name := http.StatusInternalServerError, "INTERNAL"
		switch fault.KindOf(err) {
		case fault.Invalid:
			code, name = http.StatusBadRequest, "INVALID_ARGUMENT"
		case fault.NotFound:
			code, name = http.StatusNotFound, "NOT_FOUND"
		case fault.PoolExhausted, fault.LimitReached:
			code, name = http.StatusTooManyRequests, "RESOURCE_EXHAUSTED"
		}
		text := strings.TrimSpace(fault.FieldOf(err) + " " + fault.Message(err))
		_ = s.send(w, r, code, map[string]string{"errorCode": name, "message": text}) // a small answer always has room
	})
}

// results asks the HTTP API.
func (s *Server) results(r *http.Request, method, path string, body []byte, into any) error {
	got := s.ask(r, method, path, body)
	if got.code < http.StatusBadRequest {
		return json.Unmarshal(got.body.Bytes(), into)
	}
	var e struct{ Field, Message string }
	_ = json.Unmarshal(got.body.Bytes(), &e) // otherwise it says nothing
	kind := fault.Internal
	switch got.code {
	case http.StatusBadRequest:
		kind = fault.Invalid
	case http.StatusTooManyRequests:
		kind = fault.LimitReached
	}
	return fault.New("", kind, "%s %s", e.Field, e.Message)
}

// catalog returns the offers of this peer, its tools, and where to search.
func (s *Server) catalog(_ http.ResponseWriter, r *http.Request, here string) (any, error) {
	var list struct{ Records []json.RawMessage }
	if err := s.results(r, http.MethodGet, "/v1/discovery/records", nil, &list); err != nil {
		return nil, err
	}
	host := segment(r.Host)
	entries := []entry{
		{Identifier: "urn:air:" + host + ":registry:search", Name: "Search of the network", Type: registryType, URL: here},
		{Identifier: "urn:air:" + host + ":mcp:tools", Name: "Tools of this peer", Type: serverType, Data: card("blackholed", instructions, s.Version, here+"/mcp")},
	}
	for _, record := range list.Records {
		e, err := (&found{Record: record}).entry()
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return map[string]any{"specVersion": "1.0", "host": map[string]string{"displayName": r.Host}, "entries": entries}, nil
}

// byIdentifier returns the entry of an identifier, urn:air:PUBLISHER:TYPE:ID.
func (s *Server) byIdentifier(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	asked := r.PathValue("identifier")
	parts := strings.Split(asked, ":")
	if len(parts) < 5 || parts[0] != "urn" || parts[1] != "air" {
		return nil, fault.Invalidf("identifier", asked, "must be urn:air:PUBLISHER:TYPE:ID")
	}
	where := map[string]any{"field": "id", "op": "any", "values": choice{parts[len(parts)-1]}}
	body, _ := json.Marshal(map[string]any{"type": parts[len(parts)-2], "where": []any{where}, "limit": maxPage}) // texts always have a JSON form
	var answer struct{ Results []found }
	if err := s.results(r, http.MethodPost, pathQuery, body, &answer); err != nil {
		return nil, err
	}
	for n := range answer.Results {
		if e, err := answer.Results[n].entry(); err != nil || e.Identifier == asked {
			return e, err
		}
	}
	return nil, fault.New("", fault.NotFound, "this network has no entry %q", asked)
}

// segment returns a text as a part of an identifier.
func segment(text string) string {
	return strings.Trim(strings.Map(func(c rune) rune {
		if c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c)) || c == '-' {
			return c
		}
		return '.'
	}, text), ".")
}

// referrals are the entries of other registries. The draft has them in answers of the mode referrals alone. An identifier is the host and the path of
// the search: their own ones are known to them only.
func (s *Server) referrals() []entry {
	all := []entry{}
	for _, text := range s.Referrals {
		at, err := url.Parse(text)
		if err != nil {
			continue // the settings have none
		}
		all = append(all, entry{Identifier: "urn:air:" + segment(at.Host) + ":registry:" + cmp.Or(segment(at.RequestURI()), "search"), Name: at.Host, Type: registryType, URL: text})
	}
	return all
}

// prove has this peer check domains of entries that only others checked: a question for checked domains does so.
// Later answers then name the entries by them.
func (s *Server) prove(r *http.Request, domains []string) {
	slices.Sort(domains)
	domains = slices.DeleteFunc(slices.Compact(domains), func(d string) bool { return d == "" })
	if len(domains) == 0 {
		return
	}
	where := map[string]any{"field": "domain", "op": "any", "values": domains[:min(len(domains), maxWords)]}
	query := map[string]any{"types": searched(), "where": []any{where}, "domain": "*", "limit": maxPage}
	body, _ := json.Marshal(query)                                              // texts always have a JSON form
	_ = s.results(r, http.MethodPost, "/v1/discovery/query", body, &struct{}{}) // the next answer tries again
}

// hit is a result that has words of a search.
type hit struct {
	*found
	score int // percent
}

// search returns a page of hits. Filters of offers are a query of the HTTP API, with the words of the text: first for offers that have all of them, and,
// if these are few, for those with one. The share of words that they have orders the best ones.
func (s *Server) search(w http.ResponseWriter, r *http.Request, here string) (any, error) {
	var q struct {
		Query struct {
			Text   string            `json:"text"`
			Filter map[string]choice `json:"filter"`
		} `json:"query"`
		Federation string `json:"federation"` // auto means none: this peer asks no other registry
		Size       *int   `json:"pageSize"`
		Token      string `json:"pageToken"`
	}
	body, err := s.body(w, r)
	if err != nil {
		return nil, fault.Invalidf("body", nil, "cannot be read: %w", err)
	}
	if err = json.Unmarshal(body, &q); err != nil { // fields of later drafts pass
		return nil, fault.Invalidf("body", nil, "is no search: %w", err)
	}
	from, size, asked := 0, 10, words(q.Query.Text)
	if q.Size != nil {
		size = *q.Size
	}
	if q.Token != "" {
		from, err = strconv.Atoi(q.Token)
	}
	switch {
	case len(asked) == 0:
		return nil, fault.Invalidf("query.text", nil, "must have a word")
	case len(asked) > maxWords:
		return nil, fault.Invalidf("query.text", len(asked), "must have at most %d different words", maxWords)
	case !slices.Contains([]string{"", "auto", "referrals", "none"}, q.Federation):
		return nil, fault.Invalidf("federation", q.Federation, "must be auto, referrals or none")
	case size < 1 || size > maxPage:
		return nil, fault.Invalidf("pageSize", size, "must be 1 to %d", maxPage)
	case err != nil || from < 0 || from > maxRanked:
		return nil, fault.Invalidf("pageToken", q.Token, "must be that of an answer")
	}
	types, where := searched(), []any{}
	for key, values := range q.Query.Filter {
		switch {
		case key == "metadata.type":
			types = values
		case key != "type" && key != "tags" && !measured(key):
			where = append(where, map[string]any{"field": strings.TrimPrefix(key, "metadata."), "op": "any", "values": values})
		}
	}
	var hits []hit
	seen, complete := make(map[string]bool), false
	for _, op := range []string{"all", "any"} {
		if op == "all" && len(asked) == 1 || len(hits) == maxRanked {
			continue
		}
		text := map[string]any{"field": "text", "op": op, "values": asked}
		body, _ = json.Marshal(map[string]any{"types": types, "where": slices.Concat(where, []any{text}), "limit": maxRanked}) // texts always have a JSON form
		var answer struct {
			Results  []found
			Total    int
			Complete bool
		}
		if err := s.results(r, http.MethodPost, pathQuery, body, &answer); err != nil {
			return nil, err
		}
		complete = answer.Complete && answer.Total <= len(answer.Results)
		for n := range answer.Results {
			record := answer.Results[n].Record
			if h := (hit{&answer.Results[n], score(record, asked)}); h.score > 0 && !seen[string(record)] {
				seen[string(record)] = true
				hits = append(hits, h)
			}
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.score, a.score) })
	page, more, skip, vouched := []entry{}, false, from, []string{}
	for n := 0; n < len(hits) && !more; n++ {
		e, err := hits[n].entry()
		if err != nil {
			return nil, err
		}
		fits := true
		for key, values := range q.Query.Filter {
			fits = fits && e.fits(key, values)
		}
		switch e.Score, e.Source = &hits[n].score, here; {
		case !fits:
		case skip > 0:
			skip--
		case len(page) == size:
			more = true
		default:
			page, vouched = append(page, e), append(vouched, e.vouched)
		}
	}
	s.prove(r, vouched)
	out := map[string]any{"results": page}
	if more {
		out["pageToken"] = strconv.Itoa(from + size)
	}
	if q.Federation == "referrals" {
		out["referrals"] = s.referrals()
	}
	// The answer has no field for it. More matches than were read may hide better ones.
	w.Header().Set("X-Blackhole-Complete", strconv.FormatBool(complete))
	return out, nil
}
