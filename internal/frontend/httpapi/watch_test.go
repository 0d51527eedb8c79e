package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const watchPath = "http://localhost/v1/discovery/watch?type=compute"

// pipes is a network in memory whose connections live in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inBubble runs a test against a served API in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, a *fixture, c *http.Client)) {
	synctest.Test(t, func(t *testing.T) {
		a, p := newFixture(t), newPipes()
		done := make(chan error, 1)
		go func() { done <- a.Serve(p) }()
		transport := &http.Transport{DialContext: p.dial}
		t.Cleanup(func() {
			transport.CloseIdleConnections()
			a.Server.Close()
			require.NoError(t, <-done)
		})
		test(t, a, &http.Client{Transport: transport})
	})
}

// sse is one server-sent event.
type sse struct {
	event, id string
	data      object
}

// events is an open watch.
type events struct {
	t      *testing.T
	lines  *bufio.Scanner
	header http.Header
	close  func()
}

func watch(t *testing.T, c *http.Client, url string, edits ...func(*http.Request)) *events {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	require.NoError(t, err)
	for _, edit := range edits {
		edit(r)
	}
	resp, err := c.Do(r)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode)
	end := func() { cancel(); resp.Body.Close() }
	t.Cleanup(end)
	return &events{t: t, lines: bufio.NewScanner(resp.Body), header: resp.Header, close: end}
}

// next reads one event; ok is false at the end of the stream.
func (e *events) next() (ev sse, ok bool) {
	e.t.Helper()
	for e.lines.Scan() {
		line := e.lines.Text()
		if line == "" {
			return ev, true
		}
		name, value, found := strings.Cut(line, ": ")
		require.True(e.t, found, line)
		switch name {
		case "event":
			ev.event = value
		case "id":
			ev.id = value
		case "data":
			require.Nil(e.t, ev.data, "one line of data")
			require.NoError(e.t, json.Unmarshal([]byte(value), &ev.data))
		default:
			require.Fail(e.t, "unknown field", line)
		}
	}
	require.Equal(e.t, sse{}, ev, "the stream ends between events")
	return ev, false
}

// expect reads an event of a kind about a record, or about none.
func (e *events) expect(kind, id string) sse {
	e.t.Helper()
	ev, ok := e.next()
	require.True(e.t, ok, "the stream ended: %v", e.lines.Err())
	require.Equal(e.t, kind, ev.event)
	if id == "" {
		_, says := ev.data["complete"]
		require.Equal(e.t, kind == "progress", says)
		require.NotContains(e.t, ev.data, "record")
	} else {
		require.Equal(e.t, id, ev.data["record"].(object)["id"])
	}
	return ev
}

func TestWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, a *fixture, c *http.Client) {
		a.Foreign(t, discoverytest.Offer("f", func(o *records.Offer) { o.Metadata.Name = "data: \"é\"" }))
		w := watch(t, c, watchPath+"&near=52.5,13.4&radius_km=50")
		require.Equal(t, "text/event-stream", w.header.Get("Content-Type"))
		require.Equal(t, "no-store", w.header.Get("Cache-Control"))
		w.expect("added", "f")
		require.NotEmpty(t, w.expect("progress", "").id)
		a.ok(t, 201, "POST", own, text(t, "a"))
		a.ok(t, 201, "POST", own, text(t, "elsewhere", set("location.latitude", 0)))
		require.NotEmpty(t, w.expect("added", "a").id)
		a.ok(t, 200, "PUT", own+"/a", text(t, "a", set("pricing.base_price", 2)))
		w.expect("updated", "a")
		a.ok(t, 200, "DELETE", own+"/a", "")
		w.expect("withdrawn", "a")
		ev, ok := w.next()
		for ok && ev.event == "progress" { // for as long as foreign records live
			ev, ok = w.next()
		}
		require.Equal(t, "expired", ev.event)
	})
}

// TestWatchLivesLong: longer than any request may take to arrive, with a sign of life
// every now and then, and without a connection that the server takes for dead.
func TestWatchLivesLong(t *testing.T) {
	inBubble(t, func(t *testing.T, a *fixture, c *http.Client) {
		w := watch(t, c, watchPath)
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			before := time.Now()
			w.expect("progress", "")
			require.LessOrEqual(t, time.Since(before), readRequest/2)
		}
		a.ok(t, 201, "POST", own, text(t, "a"))
		w.expect("added", "a")
	})
}

func TestWatchResumes(t *testing.T) {
	inBubble(t, func(t *testing.T, a *fixture, c *http.Client) {
		w := watch(t, c, watchPath)
		start := w.expect("progress", "").id
		a.ok(t, 201, "POST", own, text(t, "a"))
		middle := w.expect("added", "a").id
		w.close()
		a.ok(t, 201, "POST", own, text(t, "b"))

		watch(t, c, watchPath, header("Last-Event-ID", middle)).expect("added", "b")
		watch(t, c, watchPath+"&after="+middle).expect("added", "b")
		watch(t, c, watchPath+"&after="+start).expect("added", "a")
		// A browser comes back to the URL it began with, and with the id of the last event.
		watch(t, c, watchPath+"&after="+start, header("Last-Event-ID", middle)).expect("added", "b")

		lost := watch(t, c, watchPath+"&after=1-1-0")
		require.Empty(t, lost.expect("reset", "").id, "until the matches are there the old id stays")
		for range 2 {
			ev, ok := lost.next()
			require.True(t, ok)
			require.Equal(t, "added", ev.event)
		}
		require.NotEmpty(t, lost.expect("progress", "").id)
	})
}

// TestWatchAnswersAtOnce: a resumed watch without news has its header before its first event.
func TestWatchAnswersAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fixture, c *http.Client) {
		id := watch(t, c, watchPath).expect("progress", "").id
		before := time.Now()
		w := watch(t, c, watchPath+"&after="+id)
		require.Equal(t, before, time.Now())
		w.expect("progress", "")
	})
}

func TestWatchRefuses(t *testing.T) {
	a := newFixture(t)
	path := "GET /v1/discovery/watch?"
	a.refused(t, invalid("type"), path, "")
	a.refused(t, invalid("colour"), path+"type=compute&colour=red", "")
	a.refused(t, invalid("near.latitude"), path+"type=compute&near=91,0", "")
	a.refused(t, invalid("sort"), path+"type=compute&sort=beauty", "")
	a.refused(t, invalid("after"), path+"type=compute&after=yesterday", "")
	a.refused(t, invalid("after"), path+"type=compute&after=1-1&after=1-2", "")
	a.refused(t, invalid("after"), path+"type=compute", "", header("Last-Event-ID", "\x01"))
	a.refused(t, invalid("url"), path+"type=compute;near=1,1", "")
	require.Zero(t, a.shared.watches.Used(), "what is refused takes no place")
}

func TestWatchesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, a *fixture, c *http.Client) {
		for n := range maxOpen - 1 {
			_, err := a.shared.watches.Take(access.With(t.Context(), access.Principal{Name: strconv.Itoa(n)}), "test")
			require.NoError(t, err)
		}
		w := watch(t, c, watchPath)
		a.refused(t, refusal{429, "pool_exhausted", "pool.watches"}, "GET /v1/discovery/watch?type=compute", "")
		w.close()
		synctest.Wait()
		watch(t, c, watchPath).expect("progress", "")
	})
}

// TestWatchOfNobody: a client that stops reading loses its watch, which frees the slot.
func TestWatchOfNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, a *fixture, c *http.Client) {
		conn, err := c.Transport.(*http.Transport).DialContext(t.Context(), "", "")
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET /v1/discovery/watch?type=compute HTTP/1.1\r\nHost: localhost\r\n\r\n")
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, a.shared.watches.Used())
		time.Sleep(writeAnswer + 15*time.Second)
		synctest.Wait()
		require.Zero(t, a.shared.watches.Used())
	})
}

func TestCloseEndsWatches(t *testing.T) {
	inBubble(t, func(t *testing.T, a *fixture, c *http.Client) {
		w := watch(t, c, watchPath)
		w.expect("progress", "")
		before := time.Now()
		closed := make(chan struct{})
		go func() { a.Server.Close(); close(closed) }()
		_, ok := w.next()
		require.False(t, ok)
		require.NoError(t, w.lines.Err(), "the stream ends properly")
		<-closed
		require.Less(t, time.Since(before), time.Second)
	})
}

// TestCloseWaitsForRequests: Close gives requests a short grace period.
func TestCloseWaitsForRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, hang := newPipes(), make(chan struct{})
		s := New(Config{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-hang
			_, _ = w.Write([]byte("whole"))
		})})
		done := make(chan error, 1)
		go func() { done <- s.Serve(p) }()
		c := &http.Client{Transport: &http.Transport{DialContext: p.dial}}
		got := make(chan error, 2)
		get := func() {
			resp, err := c.Get("http://localhost/v1/metrics")
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			got <- err
		}
		go get()
		synctest.Wait()
		closed := make(chan struct{})
		go func() { s.Close(); close(closed) }()
		time.Sleep(time.Second)
		close(hang)
		require.NoError(t, <-got, "who was in time is served")
		<-closed
		require.NoError(t, <-done)
	})
}

// TestSlowRequests: slow headers and slow bodies end the connection.
func TestSlowRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *fixture, c *http.Client) {
		for sent, allowed := range map[string]time.Duration{
			"GET / HT": readHeader,
			"POST /v1/discovery/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{": readRequest,
		} {
			conn, err := c.Transport.(*http.Transport).DialContext(t.Context(), "", "")
			require.NoError(t, err)
			_, err = io.WriteString(conn, sent)
			require.NoError(t, err)
			began := time.Now()
			_, err = io.Copy(io.Discard, conn)
			require.True(t, err == nil || errors.Is(err, io.ErrClosedPipe), "%v", err)
			require.Less(t, time.Since(began), allowed+2*time.Second)
			require.NoError(t, conn.Close())
		}
	})
}

// TestEventsWithoutACursor: such an event leaves the last id unchanged.
func TestEventsWithoutACursor(t *testing.T) {
	require.Equal(t, "event: reset\ndata: {}\n\n", string(eventText(query.Event{Kind: query.Reset})))
	require.Equal(t, "event: progress\nid: 1-2\ndata: {\"complete\":true}\n\n", string(eventText(query.Event{Kind: query.Progress, Cursor: "1-2", Complete: true})))
	require.Equal(t, `event: progress
data: {"complete":false,"beyond":{"records":2,"features":["x"]},"reason":"no keeper"}

`, string(eventText(query.Event{Kind: query.Progress, Reason: "no keeper", Beyond: &query.LeftOut{Records: 2, Features: []string{"x"}}})))
}
