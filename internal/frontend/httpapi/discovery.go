package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/jsonform"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// discoveryAPI handles the routes of the discovery plane and of the peer itself.
type discoveryAPI struct {
	*shared
	hosts     hostNames
	registrar discovery.Registrar
	finder    discovery.Finder
	node      discovery.Node
	metrics   http.Handler
	agent     *Agent // for the health of the registry; nil without an agent plane
	logLevel  func(level string) (previous string, err error)
}

func newDiscoveryAPI(s *shared, c *Config) *discoveryAPI {
	return &discoveryAPI{
		shared: s, hosts: c.Hosts, registrar: c.Registrar, finder: c.Finder, node: c.Node, metrics: c.Metrics, agent: c.Agent, logLevel: c.SetLogLevel,
	}
}

func (d *discoveryAPI) routes() []route {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.metrics.ServeHTTP(w, r) })
	return []route{
		{pattern: "POST /v1/discovery/records", role: access.RoleAdmin, serve: handler(d.register)},
		{pattern: "POST /v1/discovery/records:batch", role: access.RoleAdmin, serve: handler(d.registerBatch)},
		{pattern: "GET /v1/discovery/records", role: access.RoleReadOnly, serve: handler(d.list)},
		{pattern: "GET /v1/discovery/records/{id}", role: access.RoleReadOnly, serve: handler(d.get)},
		{pattern: "PUT /v1/discovery/records/{id}", role: access.RoleAdmin, serve: handler(d.update)},
		{pattern: "DELETE /v1/discovery/records/{id}", role: access.RoleAdmin, serve: handler(d.withdraw)},
		{pattern: "POST /v1/discovery/records/{id}/pause", role: access.RoleAdmin, serve: handler(d.pause)},
		{pattern: "POST /v1/discovery/records/{id}/resume", role: access.RoleAdmin, serve: handler(d.resume)},
		{pattern: "GET /v1/discovery/resolve", role: access.RoleReadOnly, asks: true, serve: handler(d.resolve)},
		{pattern: "POST /v1/discovery/query", role: access.RoleReadOnly, serve: handler(d.query)},
		{pattern: "GET /v1/discovery/query", role: access.RoleReadOnly, asks: true, serve: handler(d.queryByParameters)},
		{pattern: "GET /v1/discovery/watch", role: access.RoleReadOnly, asks: true, waits: true, serve: handler(d.watch)},
		{pattern: "GET /v1/status", role: access.RoleReadOnly, serve: handler(d.status)},
		{pattern: "GET /v1/peers", role: access.RoleReadOnly, serve: handler(d.peers)},
		{pattern: "PUT /v1/log-level", role: access.RoleAdmin, serve: handler(d.setLogLevel)},
		{pattern: "GET /v1/health", role: access.RoleNone, serve: handler(d.health)},
		{pattern: "GET /v1/metrics", role: access.RoleReadOnly, serve: metrics},
		{pattern: "GET /metrics", role: access.RoleReadOnly, serve: metrics}, // where Prometheus looks unasked
		{pattern: "GET /readyz", role: access.RoleNone, serve: handler(d.ready)},
	}
}

func (d *discoveryAPI) query(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	q, err := questionIn(body)
	if err != nil {
		return err
	}
	return d.answer(w, r, q)
}

func (d *discoveryAPI) queryByParameters(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Query(r.URL)
	if err != nil {
		return err
	}
	q, err := questionOf(values)
	if err != nil {
		return err
	}
	return d.answer(w, r, q)
}

func (d *discoveryAPI) answer(w http.ResponseWriter, r *http.Request, q query.Query) error {
	a, err := d.finder.Query(r.Context(), q)
	if err != nil {
		return err
	}
	if note := comparedIn(q); a.Total == 0 && len(a.Notes) == 0 && note != "" {
		with := *a // others may share the answer
		with.Notes = []string{note}
		a = &with
	}
	n := 0
	for i := range a.Results {
		n += ofRecord(a.Results[i].Record)
	}
	return d.buffers.write(w, n, a.AppendJSON)
}

// comparedIn says which prices a question compares that names no currency: others are no match.
func comparedIn(q query.Query) string {
	if q.Currency != "" || q.MaxPrice == nil && q.Sort != query.SortPrice {
		return ""
	}
	plan, err := queries.Compile(q, queries.Defaults{})
	if err != nil {
		return "" // several types: each has a unit of its own
	}
	p := plan.Query().Price
	return fmt.Sprintf("prices compared in %s %s only: currency and price_unit name others", p.Currency, p.PriceUnit)
}

// ofRecord returns about how many bytes an answer has for a record, with what was measured of it.
func ofRecord(r *records.Record) int { return 1<<10 + 2*len(r.Envelope()) }

func (d *discoveryAPI) resolve(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, "key")
	if err != nil {
		return err
	}
	rec, err := d.finder.Resolve(r.Context(), values.Get("key"))
	if err != nil {
		return err
	}
	return d.buffers.write(w, ofRecord(rec), rec.AppendJSON)
}

// watch streams the events of a query. A client resumes with the id of the last event, in the
// Last-Event-ID header or in the parameter after.
func (d *discoveryAPI) watch(w http.ResponseWriter, r *http.Request) error {
	q, after, err := readWatch(r)
	if err != nil {
		return err
	}
	release, err := d.watches.Take(r.Context(), "httpapi.watch")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := d.untilClosing(r.Context())
	defer cancel()
	watcher, err := d.finder.Watch(ctx, q, after)
	if err != nil {
		return d.orClosing(err)
	}
	defer watcher.Close()
	stream(ctx, newEventStream(w, r), watcher)
	return nil
}

// readWatch returns the query and the event to resume after.
func readWatch(r *http.Request) (q query.Query, after string, err error) {
	values, err := input.Query(r.URL)
	if err != nil {
		return q, "", err
	}
	if after, err = input.Single(values, "after"); err != nil {
		return q, "", err
	}
	values.Del("after")
	if id := r.Header.Get("Last-Event-ID"); id != "" { // a browser reconnects to the URL of its first request
		after = id
	}
	q, err = questionOf(values)
	return q, after, err
}

// stream writes events until the client leaves or the server closes. The header precedes the
// first event, so that the client learns early that the watch is open.
func stream(ctx context.Context, out *eventStream, watcher discovery.Watcher) {
	for err := out.begin(); err == nil; {
		var ev query.Event
		if ev, err = watcher.Next(ctx); err == nil {
			err = out.write(eventText(ev))
		}
	}
}

// eventText omits a missing id, because an empty id would make a browser forget the last one.
func eventText(ev query.Event) []byte {
	data := []byte{'{'} // one line, as the framing requires
	if ev.Kind == query.Progress {
		data = fmt.Appendf(data, `"complete":%t`, ev.Complete)
	}
	if ev.Beyond != nil {
		data = append(append(data, `,"beyond":`...), dialect.JSON(ev.Beyond)...)
	}
	if ev.Record != nil {
		data = ev.Record.AppendJSON(append(data, `"record":`...))
	}
	if ev.Reason != "" {
		if len(data) > 1 {
			data = append(data, ',')
		}
		data = jsonform.AppendString(append(data, `"reason":`...), ev.Reason)
	}
	data = append(data, '}')
	id := ""
	if ev.Cursor != "" {
		id = "id: " + ev.Cursor + "\n"
	}
	return fmt.Appendf(nil, "event: %s\n%sdata: %s\n\n", ev.Kind, id, data)
}
