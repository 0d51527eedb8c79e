package mirror

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/pkg/fault"
)

// web is a server that answers requests with JSON.
type web struct {
	base   *url.URL
	client *http.Client
	header http.Header // with the token
}

func (w *web) close() { w.client.CloseIdleConnections() }

// call sends a request, and reads the answer into answer unless that is nil. Errors: NotFound, beside the headers; others.
func (w *web) call(ctx context.Context, method, at string, query url.Values, body []byte, answer any) (http.Header, error) {
	u, err := url.Parse(strings.TrimSuffix(w.base.String(), "/") + at)
	if err != nil {
		return nil, err
	}
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = w.header.Clone()
	got, err := w.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fault.Wrap("", ctx.Err())
		}
		return nil, fault.As("", fault.Unavailable, err)
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(got.Body, 2*maxBytes)) // values are in base64
	switch {
	case err != nil:
		return nil, fault.As("", fault.Unavailable, err)
	case got.StatusCode/100 != 2:
		return got.Header, fault.New("", kindOf(got.StatusCode), "%s: %s", got.Status, clean.Text(strings.TrimSpace(string(text)), 500))
	case answer == nil:
		return got.Header, nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return nil, fault.New("", fault.Unavailable, "%s is not answered as expected: %w", at, err)
	}
	return got.Header, nil
}

func kindOf(status int) fault.Kind {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fault.Forbidden
	case status == http.StatusNotFound:
		return fault.NotFound
	case status/100 == 4:
		return fault.Invalid
	}
	return fault.Unavailable
}

// consulKeys are the keys of a prefix at a server of Consul's protocol.
type consulKeys struct {
	web
	prefix string
}

func (k *consulKeys) list(ctx context.Context) (map[string]entry, uint64, error) {
	var pairs []struct {
		Key, Session string
		Flags        uint64
		Value        []byte
	}
	h, err := k.call(ctx, http.MethodGet, "/v1/kv/"+escaped(k.prefix), url.Values{"recurse": {"true"}}, nil, &pairs)
	if err = orNone(h, err); err != nil {
		return nil, 0, err
	}
	entries, size := make(map[string]entry, len(pairs)), 0
	for _, p := range pairs {
		size += len(p.Key) + len(p.Value)
		entries[p.Key] = entry{value: p.Value, flags: p.Flags, bound: p.Session != ""}
	}
	return entries, index(h), fits(len(entries), size)
}

// changed asks for the names alone until their index is another one.
func (k *consulKeys) changed(ctx context.Context, since uint64) error {
	for {
		h, err := k.call(ctx, http.MethodGet, "/v1/kv/"+escaped(k.prefix), url.Values{"keys": {"true"}, "index": {strconv.FormatUint(since, 10)}, "wait": {"1m"}}, nil, nil)
		if err = orNone(h, err); err != nil || index(h) != since || since == 0 {
			return err
		}
	}
}

// orNone is no error for a prefix without keys: its answer is 404 with an index. One without an index is of another kind of server.
func orNone(h http.Header, err error) error {
	if fault.KindOf(err) == fault.NotFound && index(h) > 0 {
		return nil
	}
	return err
}

// escaped writes a key into a path. Servers clean a path with empty segments or dots, so it has none.
func escaped(key string) string {
	clean := path.Clean("/" + key)
	if strings.HasSuffix(key, "/") && clean != "/" {
		clean += "/"
	}
	if clean == "/"+key {
		return (&url.URL{Path: key}).EscapedPath()
	}
	return strings.ReplaceAll(url.PathEscape(key), ".", "%2E")
}

func index(h http.Header) uint64 {
	n, _ := strconv.ParseUint(h.Get("X-Consul-Index"), 10, 64)
	return n
}

func (k *consulKeys) put(ctx context.Context, name string, e entry, _ bool) error {
	_, err := k.call(ctx, http.MethodPut, "/v1/kv/"+escaped(name), url.Values{"flags": {strconv.FormatUint(e.flags, 10)}}, e.value, nil)
	return err
}

func (k *consulKeys) remove(ctx context.Context, name string) error {
	_, err := k.call(ctx, http.MethodDelete, "/v1/kv/"+escaped(name), nil, nil, nil)
	return err
}

// sourceKey of the metadata marks services that a mirror registered; other tools use it alike.
const (
	sourceKey = "external-source"
	sourceOwn = "blackholed-sync"
)

// service is the form of a service that all ends share.
type service struct {
	Name    string
	Tags    []string          `json:",omitempty"`
	Meta    map[string]string `json:",omitempty"`
	Address string
	Port    int
}

func (s *service) entry(status string) entry {
	slices.Sort(s.Tags)
	text, err := json.Marshal(s)
	if err != nil {
		panic("mirror: a service of texts has no JSON: " + err.Error()) // impossible
	}
	return entry{value: text, status: status}
}

// consulServices are the services at a server of Consul's protocol: as a source all of the catalog, as a target those that a mirror
// registered at this agent. The registered ones have a check with a TTL, so they become critical when the mirror ends.
type consulServices struct {
	web
	ttl      time.Duration
	asTarget bool
}

func (c *consulServices) list(ctx context.Context) (map[string]entry, uint64, error) {
	if c.asTarget {
		return c.registered(ctx)
	}
	names := make(map[string][]string)
	if _, err := c.call(ctx, http.MethodGet, "/v1/catalog/services", nil, nil, &names); err != nil {
		return nil, 0, err
	}
	entries, size := make(map[string]entry), 0
	for name := range names {
		var some []struct {
			Node    struct{ Node, Address string }
			Service struct {
				ID string
				service
				Service string // is the name
			}
			Checks []struct{ Status string }
		}
		if _, err := c.call(ctx, http.MethodGet, "/v1/health/service/"+url.PathEscape(name), nil, nil, &some); err != nil {
			return nil, 0, err
		}
		for _, one := range some {
			s := one.Service.service
			if s.Name = one.Service.Service; s.Name == "consul" || s.Meta[sourceKey] == sourceOwn {
				continue // of the servers themselves, and what a mirror the other way brought
			}
			s.Address = cmp.Or(s.Address, one.Node.Address)
			status := "passing"
			for _, check := range one.Checks {
				status = worse(status, check.Status)
			}
			e := s.entry(status)
			size += len(e.value)
			entries[one.Node.Node+"-"+one.Service.ID] = e
		}
	}
	return entries, 0, fits(len(entries), size)
}

// worse returns the worse of two statuses.
func worse(a, b string) string {
	order := []string{"passing", "warning", "critical"}
	if b == "maintenance" || slices.Index(order, b) > slices.Index(order, a) {
		return cmp.Or(map[string]string{"maintenance": "critical"}[b], b)
	}
	return a
}

// registered returns what a mirror registered at the agent.
func (c *consulServices) registered(ctx context.Context) (map[string]entry, uint64, error) {
	all := make(map[string]struct {
		service
		Service string
	})
	if _, err := c.call(ctx, http.MethodGet, "/v1/agent/services", nil, nil, &all); err != nil {
		return nil, 0, err
	}
	entries := make(map[string]entry)
	for id, one := range all {
		if one.Meta[sourceKey] == sourceOwn {
			s := one.service
			s.Name = one.Service
			delete(s.Meta, sourceKey)
			entries[id] = s.entry("")
		}
	}
	return entries, 0, nil
}

// changed has nothing to wait for: each round says all statuses again.
func (c *consulServices) changed(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return nil
}

// put registers a service, or says its status again.
func (c *consulServices) put(ctx context.Context, id string, e entry, same bool) error {
	checkID := "sync:" + id
	if same {
		body := fmt.Appendf(nil, `{"Status":%q,"Output":"as at the source"}`, e.status)
		if _, err := c.call(ctx, http.MethodPut, "/v1/agent/check/update/"+url.PathEscape(checkID), nil, body, nil); err == nil {
			return nil
		} // the agent has lost the check
	}
	var s service
	if err := json.Unmarshal(e.value, &s); err != nil {
		return err
	}
	meta := map[string]string{sourceKey: sourceOwn}
	for k, v := range s.Meta {
		meta[k] = v
	}
	body, err := json.Marshal(map[string]any{
		"ID": id, "Name": s.Name, "Tags": s.Tags, "Meta": meta, "Address": s.Address, "Port": s.Port,
		"Check": map[string]any{"CheckID": checkID, "Name": "as at the source", "TTL": c.ttl.String(), "Status": e.status},
	})
	if err == nil {
		_, err = c.call(ctx, http.MethodPut, "/v1/agent/service/register", nil, body, nil)
	}
	return err
}

func (c *consulServices) remove(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodPut, "/v1/agent/service/deregister/"+url.PathEscape(id), nil, nil, nil)
	return err
}
