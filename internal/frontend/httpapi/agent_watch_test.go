package httpapi

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/instance"
)

const watched = "/v1/services/payment/watch"

// later makes a request that does not answer at once.
func (a agentFixture) later(t testing.TB, line string) <-chan reply {
	t.Helper()
	done := make(chan reply, 1)
	go func() { done <- a.send(t, line, "") }()
	<-a.waiting
	require.Empty(t, done)
	return done
}

func TestLongPoll(t *testing.T) {
	a := newAgentFixture(t)
	for _, target := range []string{watched, watched + "?index=0", watched + "?index=0&wait=10m"} {
		require.JSONEq(t, `{"service": "payment", "index": 1, "instances": []}`, a.ok(t, 200, "GET "+target, "").text)
	}
	pending := a.later(t, "GET "+watched+"?index=1")
	a.ok(t, 201, "POST /v1/services/order/instances", beating())
	<-a.waiting // woken by a change outside this result
	require.Empty(t, pending)
	a.ok(t, 201, "POST "+payments, beating())
	got := <-pending
	require.Equal(t, 200, got.code)
	require.Equal(t, 3.0, got.json["index"])
	require.Equal(t, "3", got.header.Get("X-Blackhole-Index"))
	require.Equal(t, []any{"payment-1"}, all(got.instances(t), "id"))

	// When the time is over the answer is the state, and never 304.
	got = a.ok(t, 200, "GET "+watched+"?index=3&wait=1ms", "")
	require.Equal(t, 3.0, got.json["index"])
	require.Len(t, got.instances(t), 1)
	require.Equal(t, 200, a.send(t, "HEAD "+watched+"?index=3", "").code)
	<-a.waiting

	pending = a.later(t, "GET "+watched+"?index=3&health=any")
	a.lose("no leader")
	require.Equal(t, "true", (<-pending).header.Get("X-Blackhole-Stale"))
}

func TestLongPollRefuses(t *testing.T) {
	a := newAgentFixture(t, func(c *Config) { c.MaxWatches = 1 })
	for query, field := range map[string]string{
		"index=x": "index", "index=-1": "index", "wait=soon": "wait", "wait=-1s": "wait", "wait=11m": "wait", "wait=601": "wait", "recursive=true": "recursive",
	} {
		a.refused(t, refusal{400, "invalid_parameter", field}, "GET "+watched+"?"+query, "")
	}
	a.refused(t, invalid("service"), "GET /v1/services/a%20b/watch", "")
	a.refused(t, refusal{400, "invalid_parameter", "Last-Event-ID"}, "GET "+watched, "", header("Accept", "text/event-stream"), header("Last-Event-ID", "x"))
	pending := a.later(t, "GET "+watched+"?index=1")
	a.refused(t, refusal{429, "pool_exhausted", "pool.watches"}, "GET "+watched, "")
	a.close()
	got := <-pending
	require.Equal(t, 503, got.code)
	require.Equal(t, "service_unavailable", got.json["error"])
}

// notice is one of a stream.
type notice struct{ kind, id, data string }

// feed reads a stream.
type feed struct {
	t    testing.TB
	resp *http.Response
	*bufio.Scanner
}

func (a caller) stream(t testing.TB, target string, edits ...func(*http.Request)) feed {
	t.Helper()
	resp := a.open(t, "GET "+target, "", append(edits, header("Accept", "text/event-stream"))...)
	t.Cleanup(func() { resp.Body.Close() })
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	return feed{t, resp, bufio.NewScanner(resp.Body)}
}

// next gives the next event, as a browser reads it; a comment has the kind ":".
func (e feed) next() notice {
	e.t.Helper()
	var ev notice
	for e.Scan() {
		switch name, value, _ := strings.Cut(e.Text(), ": "); name {
		case "":
			if e.Text() != "" {
				ev.kind = ":"
				continue
			}
			return ev
		case "event":
			ev.kind = value
		case "id":
			ev.id = value
		case "data":
			ev.data += value
		default:
			e.t.Fatalf("%q is no line of an event", e.Text())
		}
	}
	e.t.Fatalf("the stream ended: %v", e.Err())
	return ev
}

func (e notice) json(t testing.TB) object {
	t.Helper()
	var o object
	require.NoError(t, json.Unmarshal([]byte(e.data), &o), e.data)
	return o
}

func TestInstanceStream(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, beating())
	s := a.stream(t, watched)
	first := s.next()
	require.Equal(t, notice{"reset", "2", `{"service":"payment","index":2,"instances":[{"id":"payment-1","host":"10.0.1.1","port":8080,"health":"UP","metadata":{"version":"2.1.0","weight":100,"zone":"us-east-1a"}}]}`}, first)
	require.Equal(t, notice{":", "2", ""}, s.next())

	a.ok(t, 201, "POST "+payments, beating(set("id", "payment-2")))
	added := s.next()
	require.Equal(t, "change", added.kind)
	require.Equal(t, "3", added.id)
	require.Equal(t, []any{object{"type": "ADDED", "revision": 3.0, "instance": object{
		"id": "payment-2", "host": "10.0.1.1", "port": 8080.0, "health": "UP", "metadata": object{"version": "2.1.0", "weight": 100.0, "zone": "us-east-1a"},
	}}}, added.json(t)["events"])
	a.ok(t, 200, "POST "+payments, beating(set("id", "payment-2"), set("host", "10.0.1.2")))
	require.Contains(t, s.next().data, `"type":"MODIFIED"`)
	a.ok(t, 204, "DELETE "+payments+"/payment-2", "")
	deleted := s.next()
	require.Contains(t, deleted.data, `"type":"DELETED"`)
	require.Contains(t, deleted.data, `"health":"DOWN"`)
	a.ok(t, 201, "POST /v1/services/order/instances", beating())
	require.Equal(t, notice{":", "6", ""}, s.next())

	a.lose("no leader")
	require.Equal(t, notice{"contact", "", `{"stale":true,"reason":"no leader","age_seconds":1.5}`}, s.next())
	a.lose("")
	require.Equal(t, notice{"contact", "", `{"stale":false}`}, s.next())

	// Another client resumes after this one.
	for _, edit := range []struct {
		target string
		header func(*http.Request)
	}{{watched, header("Last-Event-ID", "4")}, {watched + "?index=4", header("X", "")}} {
		again := a.stream(t, edit.target, edit.header).next()
		require.Equal(t, "change", again.kind)
		require.Contains(t, again.data, `"type":"DELETED"`)
	}
	require.Equal(t, "reset", a.stream(t, watched, header("Last-Event-ID", "99")).next().kind)
}

func TestInstanceStreamEnds(t *testing.T) {
	a := newAgentFixture(t, func(c *Config) { c.MaxWatches = 1 })
	require.Equal(t, 200, a.send(t, "HEAD "+watched, "", header("Accept", "text/event-stream")).code)
	s := a.stream(t, watched)
	s.next()
	a.refused(t, refusal{429, "pool_exhausted", "pool.watches"}, "GET "+watched, "", header("Accept", "text/event-stream"))
	a.close()
	for s.Scan() {
	}
	require.NoError(t, s.Err(), "it ends as a whole answer does")
}

// TestStreamsOfManyStates: what passes through UP is seen to come and go.
func TestStreamsOfManyStates(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, with(payment, set("remove_after", "30s")))
	s := a.stream(t, watched)
	require.Contains(t, s.next().data, `"instances":[]`)
	s.next()
	a.report(key("payment", "payment-1"), instance.StatusUp)
	require.Contains(t, s.next().data, `"type":"ADDED"`)
	a.pass(30 * time.Second)
	require.Contains(t, s.next().data, `"health":"DOWN"`)
}

// TestWatchOfAllServices: a stream of the service * has the instances of all, with the names of their services.
func TestWatchOfAllServices(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, beating())
	s := a.stream(t, "/v1/services/*/watch?health=any")
	first := s.next()
	require.Equal(t, "reset", first.kind)
	require.Contains(t, first.data, `"service":"payment"`)
	a.ok(t, 201, "POST /v1/services/order/instances", beating())
	second := s.next()
	for second.kind == ":" { // a mark of progress
		second = s.next()
	}
	require.Equal(t, "change", second.kind)
	require.Contains(t, second.data, `"service":"order"`)
	require.NotContains(t, second.data, `"service":"payment"`)
	a.refused(t, invalid("service"), "GET /v1/services/*/watch", "")
	a.refused(t, invalid("service"), "GET /v1/services/*/instances", "")
}
