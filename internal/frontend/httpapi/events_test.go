package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

const eventsPath = "http://localhost/v1/events"

// past is a memory of a test.
type past struct {
	mu      sync.Mutex
	notes   []discovery.Note
	changed chan struct{}
}

func (p *past) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, discovery.Note{At: time.Now(), Kind: "leader", Subject: "id", Text: text})
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *past) since(after time.Time) (list []discovery.Note, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.notes {
		if n.At.After(after) {
			list = append(list, n)
		}
	}
	return list, p.changed
}

// livePeer is a peer with all planes and a memory, in virtual time.
type livePeer struct {
	*past
	t     *testing.T
	http  *http.Client
	close func()
	serve *Server
}

// inLiveBubble runs a test against a peer with all planes.
func inLiveBubble(t *testing.T, test func(t *testing.T, a livePeer)) {
	synctest.Test(t, func(t *testing.T) {
		h, g, solo, p := discoverytest.New(t), newRegistry(), coordtest.New(coordtest.Config{}), newPipes()
		memory := &past{changed: make(chan struct{})}
		s, done := New(Config{
			Registrar: h, Finder: h, Node: h.Node, Metrics: http.NotFoundHandler(), Guard: conforming(t), Agent: &Agent{Registrar: g, Catalog: g},
			Coordination: soloCoordination(t, solo), History: memory.since,
		}), make(chan error, 1)
		go func() { done <- s.Serve(p) }()
		transport := &http.Transport{DialContext: p.dial}
		t.Cleanup(func() {
			transport.CloseIdleConnections()
			s.Close()
			require.NoError(t, <-done)
		})
		test(t, livePeer{memory, t, &http.Client{Transport: transport}, s.Close, s})
	})
}

// seen is an event of the stream.
type seen struct {
	name, id string
	data     object
}

func (e seen) texts() (list []string) {
	for _, n := range e.data["notes"].([]any) {
		list = append(list, n.(object)["text"].(string))
	}
	return list
}

// view is an open stream.
type view struct {
	t     *testing.T
	lines *bufio.Scanner
	close func()
}

// view opens a stream and reads its first event.
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
	first, ok := v.next()
	require.True(a.t, ok)
	require.Equal(a.t, "open", first.name)
	require.Equal(a.t, []any{"discovery", "agent", "coordination"}, first.data["planes"])
	return v
}

// next returns the next event; ok is false at the end of the stream.
func (v *view) next() (ev seen, ok bool) {
	v.t.Helper()
	for v.lines.Scan() {
		name, value, _ := strings.Cut(v.lines.Text(), ": ")
		switch name {
		case "event":
			ev.name = value
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

// history returns the next event, which is one of the history of a kind.
func (v *view) history(kind string) seen {
	v.t.Helper()
	ev, ok := v.next()
	require.True(v.t, ok)
	require.Equal(v.t, []any{"history", kind}, []any{ev.name, ev.data["kind"]})
	require.NotEmpty(v.t, ev.id)
	return ev
}

// TestHistory: a stream begins with what mattered since a time, goes on with news, and continues at its position,
// also at another front end.
func TestHistory(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		a.note("long ago")
		<-time.After(time.Hour)
		noon := time.Now().UTC().Format(time.RFC3339)
		<-time.After(time.Minute)
		a.note("peer-2 leads: peer-1 is silent")
		<-time.After(time.Minute)

		v := a.view("?since=1h")
		first := v.history("past")
		require.Equal(t, []string{"peer-2 leads: peer-1 is silent"}, first.texts())
		synctest.Wait()
		a.note("the quorum is lost")
		require.Equal(t, []string{"the quorum is lost"}, v.history("change").texts())
		v.close()
		synctest.Wait()

		for question, want := range map[string][]string{
			"?since=" + noon:              {"peer-2 leads: peer-1 is silent", "the quorum is lost"},
			"?since=9h":                   {"long ago", "peer-2 leads: peer-1 is silent", "the quorum is lost"},
			"?since=9h&after=" + first.id: {"the quorum is lost"},
			"":                            nil,
			"?after=" + first.id:          {"the quorum is lost"},
			"?after=0":                    {"long ago", "peer-2 leads: peer-1 is silent", "the quorum is lost"},
			"?since=" + noon + "&after=0": {"long ago", "peer-2 leads: peer-1 is silent", "the quorum is lost"},
		} {
			require.Equal(t, want, a.view(question).history("past").texts(), question)
		}
		require.Equal(t, []string{"the quorum is lost"}, a.view("?since=9h", header("Last-Event-ID", first.id)).history("past").texts())

		ctx, leave := context.WithCancel(t.Context())
		var got []*api.FollowResponse
		err := a.serve.Follow(ctx, &api.FollowRequest{After: first.id}, func(e *api.FollowResponse) error {
			got = append(got, e)
			leave()
			return nil
		})
		require.ErrorIs(t, err, fault.Canceled)
		require.Len(t, got, 1)
		require.Contains(t, string(got[0].GetData()), "the quorum is lost")
		require.NotContains(t, string(got[0].GetData()), "peer-2")
	})
}

// TestEventsBeat: a quiet stream is kept open by comments.
func TestEventsBeat(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		v := a.view("")
		v.history("past")
		require.True(t, v.lines.Scan())
		require.Equal(t, ": alive", v.lines.Text())
	})
}

// TestEventsEndWithTheServer: the daemon's end is the end of every stream.
func TestEventsEndWithTheServer(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		v, done := a.view(""), make(chan error)
		go func() {
			done <- a.serve.Follow(t.Context(), &api.FollowRequest{}, func(*api.FollowResponse) error { return nil })
		}()
		v.history("past")
		synctest.Wait()
		a.close()
		_, ok := v.next()
		require.False(t, ok)
		require.ErrorIs(t, <-done, fault.Unavailable, "the peer stops")
	})
}

func TestEventsRefuse(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		for question, field := range map[string]string{
			"?topics=offers": "topics", "?after=nonsense": "after", "?after=-7": "after", "?after=history:7": "after",
			"?since=yesterday": "since", "?since=-1h": "since",
		} {
			resp, err := a.http.Get(eventsPath + question)
			require.NoError(t, err)
			var body object
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&body), question)
			resp.Body.Close()
			require.Equal(t, []any{400, field}, []any{resp.StatusCode, body["field"]}, question)
		}
		for field, r := range map[string]*api.FollowRequest{"after": {After: "keys"}, "since": {Since: "yesterday"}} {
			err := a.serve.Follow(t.Context(), r, nil)
			require.ErrorIs(t, err, fault.Invalid, field)
			require.Equal(t, field, fault.FieldOf(err))
		}
	})
}

// TestViewersAreBounded: one viewer above the share of a client is told to come later, and a slot is free after one leaves.
func TestViewersAreBounded(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		var all []*view
		for range maxViewers * 3 / 4 {
			all = append(all, a.view(""))
		}
		resp, err := a.http.Get(eventsPath)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		all[0].close()
		synctest.Wait()
		a.view("")
	})
}
