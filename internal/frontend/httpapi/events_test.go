package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const eventsPath = "http://localhost/v1/events"

// livePeer is a peer with all planes, in virtual time.
type livePeer struct {
	t     *testing.T
	hold  *discoverytest.Harness
	group *coordtest.Solo
	agent *registry
	http  *http.Client
	close func()
	serve *Server
}

// inLiveBubble runs a test against a peer with all planes.
func inLiveBubble(t *testing.T, test func(t *testing.T, a livePeer), edits ...func(*Config)) {
	synctest.Test(t, func(t *testing.T) {
		h, g, solo, p := discoverytest.New(t), newRegistry(), coordtest.New(coordtest.Config{}), newPipes()
		c := Config{
			Registrar: h, Finder: h, Node: h.Node, Metrics: http.NotFoundHandler(), Guard: conforming(t), Agent: &Agent{Registrar: g, Catalog: g},
			Coordination: soloCoordination(t, solo),
		}
		for _, edit := range edits {
			edit(&c)
		}
		s, done := New(c), make(chan error, 1)
		go func() { done <- s.Serve(p) }()
		transport := &http.Transport{DialContext: p.dial}
		t.Cleanup(func() {
			transport.CloseIdleConnections()
			s.Close()
			require.NoError(t, <-done)
		})
		test(t, livePeer{t, h, solo, g, &http.Client{Transport: transport}, s.Close, s})
	})
}

// seen is an event of the stream.
type seen struct {
	topic, id string
	data      object
}

// view is an open stream.
type view struct {
	t     *testing.T
	lines *bufio.Scanner
	close func()
}

func (a livePeer) view(question string, edits ...func(*http.Request)) *view {
	a.t.Helper()
	ctx, cancel := context.WithCancel(a.t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", eventsPath+question, nil)
	require.NoError(a.t, err)
	for _, edit := range edits {
		edit(r)
	}
	resp, err := a.http.Do(r)
	require.NoError(a.t, err)
	require.Equal(a.t, 200, resp.StatusCode)
	end := func() { cancel(); resp.Body.Close() }
	a.t.Cleanup(end)
	v := &view{a.t, bufio.NewScanner(resp.Body), end}
	v.lines.Buffer(nil, 1<<20)
	first, ok := v.next()
	require.True(a.t, ok)
	require.Equal(a.t, "open", first.topic)
	return v
}

// next returns the next event with data; ok is false at the end of the stream.
func (v *view) next() (ev seen, ok bool) {
	v.t.Helper()
	for v.lines.Scan() {
		name, value, _ := strings.Cut(v.lines.Text(), ": ")
		switch name {
		case "event":
			ev.topic = value
		case "id":
			ev.id = value
		case "data":
			require.NoError(v.t, json.Unmarshal([]byte(value), &ev.data))
		case "":
			if ev.data != nil && value == "" {
				return ev, true
			}
		}
	}
	return ev, false
}

// until returns the next event of a topic and a kind.
func (v *view) until(topic, kind string) seen {
	v.t.Helper()
	for {
		ev, ok := v.next()
		require.True(v.t, ok, "the stream ended before %s %s", topic, kind)
		if ev.topic == topic && ev.data["kind"] == kind {
			return ev
		}
	}
}

func (a livePeer) own(id string, edits ...func(*records.Offer)) {
	_, err := a.hold.Register(a.t.Context(), discoverytest.Offer(id, edits...))
	require.NoError(a.t, err)
}

func (a livePeer) post(line, body string) {
	a.t.Helper()
	method, path, _ := strings.Cut(line, " ")
	r, err := http.NewRequestWithContext(a.t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	require.NoError(a.t, err)
	if method == "PUT" {
		octets(r)
	}
	resp, err := a.http.Do(r)
	require.NoError(a.t, err)
	resp.Body.Close()
	require.Less(a.t, resp.StatusCode, 300, line)
}

// TestEvents: one stream begins with the state of all topics and goes on with their changes.
func TestEvents(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		a.own("a", discoverytest.Priced(2), discoverytest.At(52.5, 13.4))
		a.post("POST /v1/services/web/instances", `{"id": "w1", "host": "10.0.0.1", "port": 80}`)
		v := a.view("")
		states := map[string]object{}
		for len(states) < 3 || states["offers"]["kind"] != "progress" {
			ev, ok := v.next()
			require.True(t, ok)
			states[ev.topic] = ev.data
		}
		require.Equal(t, "w1", states["services"]["instances"].([]any)[0].(object)["id"])
		require.Equal(t, "web", states["services"]["instances"].([]any)[0].(object)["service"])
		require.Equal(t, "reset", states["keys"]["kind"])

		a.own("b", discoverytest.Priced(3))
		added := v.until("offers", "added").data["offer"].(object)
		require.Equal(t, []any{"b", 3.0, "compute"}, []any{added["id"], added["price"], added["type"]})
		a.post("POST /v1/services/api/instances", `{"id": "a1", "host": "10.0.0.2", "port": 80}`)
		change := v.until("services", "change").data["changes"].([]any)[0].(object)
		require.Equal(t, []any{"ADDED", "api"}, []any{change["type"], change["instance"].(object)["service"]})
		a.post("PUT /v1/coordination/keys/colour", "blue")
		put := v.until("keys", "change").data["changes"].([]any)[0].(object)["kv"].(object)
		require.Equal(t, "colour", put["key"])
		require.NotContains(t, put, "value", "a viewer reads the value of the key that it opens")
	})
}

// TestEventsResume: a viewer continues after the last event of each topic, and misses nothing.
func TestEventsResume(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		a.own("a")
		a.post("POST /v1/services/web/instances", `{"id": "w1", "host": "10.0.0.1", "port": 80}`)
		v := a.view("?topics=offers,services,keys")
		at := ""
		for n := 0; n < 4; { // the offer, its progress, the services, the keys
			ev, ok := v.next()
			require.True(t, ok)
			if n++; ev.id != "" {
				at = ev.id
			}
		}
		v.close()
		a.own("b")
		a.post("POST /v1/services/web/instances", `{"id": "w2", "host": "10.0.0.1", "port": 80}`)
		a.post("PUT /v1/coordination/keys/colour", "blue")
		for _, again := range []*view{a.view("?topics=offers,services,keys&after=" + at), a.view("?topics=offers,services,keys", header("Last-Event-ID", at))} {
			got := map[string]string{}
			for len(got) < 3 {
				ev, ok := again.next()
				require.True(t, ok)
				got[ev.topic] = fmt.Sprint(ev.data)
				require.NotEqual(t, "reset", ev.data["kind"])
			}
			require.Contains(t, got["offers"], "id:b")
			require.Contains(t, got["services"], "id:w2")
			require.NotContains(t, got["services"], "id:w1")
			require.Contains(t, got["keys"], "colour")
			again.close()
		}
	})
}

// TestSlowViewer: a viewer that reads nothing holds its sources back instead of filling the memory, and learns by
// reset that it has missed changes.
func TestSlowViewer(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		v := a.view("?topics=offers")
		v.until("offers", "progress")
		finder := &flood{}
		said := 0
		e := &eventsAPI{finder: finder}
		run, err := e.offers(t.Context(), interest{})
		require.NoError(t, err)
		out := mixer{queue: make(chan message, viewerQueue)}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_ = run(ctx, func(m message) error { said++; return out.say(ctx, m) })
		}()
		synctest.Wait()
		require.Equal(t, viewerQueue+1, said, "the source waits for the viewer")
		require.Equal(t, viewerQueue+1, finder.asked)
		cancel()
		synctest.Wait()
		require.True(t, finder.closed)
	})
}

// flood is a finder, and its only watcher, without an end.
type flood struct {
	asked  int
	closed bool
}

func (*flood) Query(context.Context, query.Query) (*query.Answer, error)               { return nil, nil }
func (*flood) Resolve(context.Context, string) (*records.Record, error)                { return nil, nil }
func (f *flood) Watch(context.Context, query.Query, string) (discovery.Watcher, error) { return f, nil }
func (f *flood) Close()                                                                { f.closed = true }
func (f *flood) Next(context.Context) (discovery.Event, error) {
	f.asked++
	return discovery.Event{Kind: discovery.Reset}, nil
}

// shortLived is a finder whose first watches end.
type shortLived struct {
	discovery.Finder
	left int
}

func (f *shortLived) Watch(ctx context.Context, q query.Query, after string) (discovery.Watcher, error) {
	w, err := f.Finder.Watch(ctx, q, after)
	if f.left--; err == nil && f.left >= 0 {
		return brokenWatch{w}, nil
	}
	return w, err
}

type brokenWatch struct{ discovery.Watcher }

func (brokenWatch) Next(context.Context) (discovery.Event, error) {
	return discovery.Event{}, fault.As("test", fault.Unavailable, errors.New("no news today"))
}

// TestEventsInterrupted: a topic without news says so once, and goes on when it can; the others go on meanwhile.
func TestEventsInterrupted(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		a.own("a")
		v := a.view("?topics=offers,keys")
		outages, kinds := 0, []any{}
		for len(kinds) < 3 {
			ev, ok := v.next()
			require.True(t, ok)
			if ev.data["kind"] == "interrupted" {
				outages++
				require.Equal(t, "no news today", ev.data["message"])
				continue
			}
			kinds = append(kinds, ev.topic+" "+ev.data["kind"].(string))
		}
		require.Equal(t, 1, outages)
		require.ElementsMatch(t, []any{"keys reset", "offers state", "offers progress"}, kinds)
	}, func(c *Config) { c.Finder = &shortLived{c.Finder, 3} })
}

// TestEventsEndWithTheServer: the daemon's end is the end of every stream.
func TestEventsEndWithTheServer(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		v := a.view("")
		a.close()
		for {
			if _, ok := v.next(); !ok {
				return
			}
		}
	})
}

func TestEventsRefuse(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		for question, field := range map[string]string{
			"?topics=offers,weather":          "topics",
			"?topics=health":                  "topics",
			"?types=compute,,":                "types",
			"?namespace=UPPER":                "namespace",
			"?after=offers:1":                 "after",
			"?after=nonsense":                 "after",
			"?after=services:x":               "after",
			"?after=keys:-7":                  "after",
			"?after=keys:1,keys:2":            "after",
			"?near=1,2":                       "near",
			"?topics=services&after=offers":   "after",
			"?topics=keys&after=services:0:0": "",
		} {
			resp, err := a.http.Get(eventsPath + question)
			require.NoError(t, err)
			var body object
			if field != "" {
				require.NoError(t, json.NewDecoder(resp.Body).Decode(&body), question)
				require.Contains(t, fmt.Sprint(body["field"]), field, "%s: %v", question, body)
				require.Equal(t, 400, resp.StatusCode, question)
			}
			resp.Body.Close()
		}
	})
}

// TestViewersAreBounded: one viewer above the share of a client is told to come later, and a slot is free after one leaves.
func TestViewersAreBounded(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		var all []*view
		for range maxViewers * 3 / 4 {
			all = append(all, a.view("?topics=keys"))
		}
		resp, err := a.http.Get(eventsPath + "?topics=keys")
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		all[0].close()
		synctest.Wait()
		a.view("?topics=keys")
	})
}
