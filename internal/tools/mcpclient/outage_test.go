package mcpclient

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blackhole/blackhole/internal/tools/peers"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const outage = 30 * time.Second

// TestOutage kills the leader of three peers, then a second one, and starts both again. One session works all the
// time at the third.
func TestOutage(t *testing.T) {
	peers.Long(t)
	program := peers.Build(t)
	t.Parallel()
	g := peers.New(t, 3, peers.Options{Program: program})
	leader := g.Leader(t)
	own, other := (leader+1)%3, (leader+2)%3
	a, _ := connect(t, g.Peers[own], "")
	register := func(id string) {
		send(t, "POST", g.Peers[own].HTTP+"/v1/services/tool/instances", `{"id": "`+id+`", "host": "127.0.0.1", "port": 9000, "remove_after": "never", "unhealthy_after": "1h"}`, http.StatusCreated)
	}
	register("first")
	found := a.call("find_instances", map[string]any{"service": "tool"})
	changes := make(chan map[string]any, 3)
	ctx, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	watch.Go(func() { // as an agent does that follows a service
		for index := found["index"]; ctx.Err() == nil; {
			args := map[string]any{"service": "tool", "index": index, "wait": "20s"}
			got, err := a.CallTool(ctx, &mcp.CallToolParams{Name: "watch_instances", Arguments: args})
			if ctx.Err() != nil || !assert.NoError(t, err) || !assert.False(t, got.IsError, "%s", text(got)) {
				return
			}
			now := got.StructuredContent.(map[string]any)
			if index != now["index"] {
				changes <- now
			}
			index = now["index"]
		}
	})
	job := map[string]any{"names": []string{"job"}, "agent": "prover", "ttl": 600}
	tokens := a.call("hold", job)["tokens"]
	require.NotEmpty(t, tokens)
	short := map[string]any{"names": []string{"short"}, "agent": "short", "ttl": 10}
	require.Equal(t, true, a.call("hold", short)["holding"])

	g.Kill(leader) // one voter of three
	a.transiently("hold", job)
	a.transiently("hold", short)
	a.transiently("held", map[string]any{"names": []string{"job"}})
	register("second")
	require.Len(t, receive(t, changes)["instances"], 2)

	g.Kill(other) // no majority
	began := time.Now()
	peers.Eventually(t, "the peer knows that nobody leads", time.Minute, func() bool { return a.fails("hold", job) })
	var calls sync.WaitGroup
	for tool, args := range map[string]map[string]any{
		"hold": {"names": []string{"new"}, "agent": "new"}, "held": {"names": []string{"job"}}, "release": {"agent": "none"},
	} {
		calls.Go(func() { assert.True(t, a.fails(tool, args), tool) })
	}
	calls.Go(func() { // an error of one call
		_, err := a.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "blackhole:///v1/coordination/locks"})
		assert.ErrorContains(t, err, "try again")
	})
	calls.Wait()
	got, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "find_instances", Arguments: map[string]any{"service": "tool"}})
	require.NoError(t, err)
	require.False(t, got.IsError, "%s", text(got))
	require.Len(t, got.StructuredContent.(map[string]any)["instances"], 2)
	require.Contains(t, text(got), "stale: ", "the agent can tell that it is old")
	time.Sleep(time.Until(began.Add(outage)))

	g.Start(t, leader)
	g.Start(t, other)
	peers.Eventually(t, "the group works again", 2*time.Minute, func() bool { return !a.fails("hold", job) })
	held := a.call("hold", job) // a repetition finds the same claim
	require.Equal(t, true, held["holding"])
	require.Equal(t, tokens, held["tokens"], "the lock is still held")
	// A lease that nobody renews ends after the group has a leader again, not before. The agent is told.
	peers.Eventually(t, "the other lock is lost with its lease", time.Minute, func() bool {
		got, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "held", Arguments: map[string]any{"names": []string{"short"}}})
		return err == nil && !got.IsError && strings.Contains(text(got), `"by":[]`)
	})
	register("third")
	for len(receive(t, changes)["instances"].([]any)) != 3 { // what the peer has after the outage may come first
	}
	a.call("release", map[string]any{"agent": "prover"})

	stop()
	watch.Wait()
	g.Kill(own) // the session goes on at the peer that comes back
	_, err = a.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_services"})
	require.Error(t, err)
	g.Start(t, own)
	a.transiently("held", map[string]any{"names": []string{"second"}})
}

// TestRevokedToken: an agent whose token is taken out of the settings is told so, once, and another one of the peer
// notices nothing.
func TestRevokedToken(t *testing.T) {
	peers.Long(t)
	program := peers.Build(t)
	t.Parallel()
	const head = "auth:\n  enabled: true\n  method: token\n  anonymous: none\n  tokens:\n"
	const stays = `    - {token: the-token-that-is-good, name: good, role: service, services: ["*"]}` + "\n"
	const ends = `    - {token: the-token-that-ends-soon, name: app, role: service, services: ["*"]}` + "\n"
	g := peers.New(t, 1, peers.Options{Program: program, Config: head + stays + ends})
	app, calls := connect(t, g.Peers[0], "the-token-that-ends-soon")
	good, _ := connect(t, g.Peers[0], "the-token-that-is-good")
	app.call("hold", map[string]any{"names": []string{"other"}, "agent": "app"})
	job := map[string]any{"names": []string{"job"}, "agent": "good", "ttl": 60}
	require.Equal(t, true, good.call("hold", job)["holding"])
	wait := func(a agent) <-chan outcome {
		index := a.call("find_instances", map[string]any{"service": "tool"})["index"]
		done := make(chan outcome, 1)
		go func() {
			args := map[string]any{"service": "tool", "index": index, "wait": "20s"}
			got, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: "watch_instances", Arguments: args})
			done <- outcome{got, err}
		}()
		return done
	}
	theirs, ours := wait(app), wait(good)

	g.Configure(t, head+stays)
	g.Reload(t, 0)
	if got := receive(t, theirs); got.err == nil {
		require.True(t, got.IsError, "the wait ends: %s", text(got.CallToolResult))
		require.Contains(t, text(got.CallToolResult), "unauthorized")
	}
	calls.Store(0)
	for range 5 {
		_, err := app.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_services"})
		require.ErrorContains(t, err, "Unauthorized")
	}
	for range 50 {
		time.Sleep(100 * time.Millisecond)
		good.call("hold", job)
	}
	t.Logf("%d requests with a token that has ended", calls.Load())
	require.LessOrEqual(t, calls.Load(), int64(10), "no storm")
	got := receive(t, ours)
	require.NoError(t, got.err)
	require.False(t, got.IsError, "%s", text(got.CallToolResult))
}

type outcome struct {
	*mcp.CallToolResult
	err error
}

// fails calls a tool, and reports whether its result is an error, which then says that the agent may try again.
func (a agent) fails(tool string, args map[string]any) bool {
	a.t.Helper()
	got, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if assert.NoError(a.t, err, "%s", tool) && got.IsError {
		assert.Contains(a.t, text(got), "try again", tool)
	}
	return err == nil && got.IsError
}

// transiently repeats a call of a tool until it works.
func (a agent) transiently(tool string, args map[string]any) {
	a.t.Helper()
	peers.Eventually(a.t, tool+" works", time.Minute, func() bool { return !a.fails(tool, args) })
}

func receive[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(2 * time.Minute):
		require.Fail(t, "nothing comes")
	}
	return v
}

// bearer sends a token, and counts requests.
type bearer struct {
	atomic.Int64
	token string
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	b.Add(1)
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// connect begins a session at a peer.
func connect(t *testing.T, p *peers.Peer, token string) (agent, *bearer) {
	t.Helper()
	calls := &bearer{token: token}
	transport := &mcp.StreamableClientTransport{Endpoint: "http://" + p.HTTP + "/mcp", HTTPClient: &http.Client{Transport: calls}}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "prover", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return agent{t, c}, calls
}
