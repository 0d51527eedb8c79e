package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/platform/access"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestNode(t *testing.T) {
	a := newFixture(t)
	a.Harness.Node.State = discovery.Status{PeerID: "12D3", Network: "dev", Profile: "dev", Mode: "server", Listen: []string{"/ip4/127.0.0.1/tcp/4801/p2p/12D3"}, UptimeSeconds: 1.5, Version: "v1", Reach: discovery.Reach{State: "local"}}
	status := a.ok(t, 200, "GET", "/v1/status", "")
	require.Equal(t, "12D3", status["peer_id"])
	require.Equal(t, "dev", status["profile"])
	require.Equal(t, []any{"/ip4/127.0.0.1/tcp/4801/p2p/12D3"}, status["listen"])
	require.Equal(t, 1.5, status["uptime_seconds"])
	require.Equal(t, "v1", status["version"])

	a.Harness.Node.Connected = []discovery.PeerInfo{{ID: "12D4", Addrs: []string{"/ip4/127.0.0.1/tcp/1"}, LatencyMs: 0.5}}
	peers := a.ok(t, 200, "GET", "/v1/peers", "")
	require.Equal(t, []any{object{"id": "12D4", "addrs": []any{"/ip4/127.0.0.1/tcp/1"}, "latency_ms": 0.5}}, peers["peers"])

	metrics := do(a.handler, "GET", "/v1/metrics", "")
	require.Equal(t, 200, metrics.Code)
	require.Equal(t, "blackhole_up 1\n", metrics.Body.String())
}

func TestHealth(t *testing.T) {
	a := newFixture(t)
	healthy := object{"status": "healthy"}
	for _, path := range []string{"/v1/health", "/livez", "/readyz"} {
		require.Equal(t, healthy, a.ok(t, 200, "GET", path, ""))
	}
	a.Harness.Node.NotReady = fault.New("daemon.Ready", fault.Unavailable, "not joined yet")
	require.Equal(t, healthy, a.ok(t, 200, "GET", "/livez", ""))
	require.Equal(t, "degraded", a.ok(t, 200, "GET", "/v1/health", "")["status"])
	a.refused(t, refusal{503, "service_unavailable", ""}, "GET /readyz", "")
}

func TestHealthNamesConditions(t *testing.T) {
	a := newFixture(t)
	a.Harness.Node.State.Mode = "server"
	a.Harness.Node.State.Conditions = []discovery.Condition{{Name: "clock_offset", Message: "the clock is 40s late", Problem: fault.Problem{What: "the clock is 40s late", State: fault.Now, Since: time.Unix(1, 0).UTC()}}}
	a.Harness.Node.State.Reach.State = "relayed"
	condition := []any{object{"name": "clock_offset", "message": "the clock is 40s late", "what": "the clock is 40s late", "state": "now", "since": "1970-01-01T00:00:01Z"}}
	require.Equal(t, object{"status": "degraded", "reason": "the clock is 40s late", "conditions": condition}, a.ok(t, 200, "GET", "/v1/health", ""))
	require.Equal(t, condition, a.ok(t, 200, "GET", "/v1/status", "")["conditions"])
}

// TestHosts: a DNS name rebound to 127.0.0.1 is refused, but for probes, which learn the status alone.
func TestHosts(t *testing.T) {
	a := newFixture(t)
	for _, name := range []string{"localhost", "localhost:8500", "LOCALHOST", "127.0.0.1", "127.0.0.1:80", "127.8.8.8", "[::1]", "[::1]:8500", "::1", "[::ffff:127.0.0.1]:1", "localhost.", "LocalHost.:8500", "foo.localhost", "foo.localhost."} {
		require.Equal(t, 200, do(a.handler, "GET", "/v1/health", "", host(name)).Code, name)
	}
	a.Harness.Node.State.Name, a.Harness.Node.State.Group = "attic", &discovery.Group{Role: "leader"}
	require.Equal(t, "attic", a.ok(t, 200, "GET", "/readyz", "")["name"])
	for _, name := range []string{"", "evil.example", "evil.example:8500", "localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example", "0.0.0.0:8500", "10.0.0.1", "[::]:8500", "[", "[]", ":8500", "127.0.0.1:1:2"} {
		for _, path := range []string{"/livez", "/readyz"} {
			require.JSONEq(t, `{"status": "healthy"}`, do(a.handler, "GET", path, "", host(name)).Body.String(), name)
			require.Equal(t, 200, do(a.handler, "HEAD", path, "", host(name)).Code, name)
			a.refused(t, refusal{403, "forbidden", ""}, "GET "+path, "", host(name), header("Sec-Fetch-Site", "cross-site"))
			a.refused(t, refusal{403, "forbidden", ""}, "GET "+path, "", host(name), header("Origin", "https://other.example"))
			a.refused(t, refusal{403, "forbidden", "host"}, "POST "+path, "", host(name))
		}
		for _, path := range []string{"/v1/status", "/v1/health", "/v1/services", "/livez/", "/"} {
			a.refused(t, refusal{403, "forbidden", "host"}, "GET "+path, "", host(name))
		}
		a.refused(t, refusal{403, "forbidden", "host"}, "POST "+own, text(t, "a"), host(name))
	}
	require.Empty(t, a.OwnAll())
}

// TestHostsOfASocket: each name is that of a server at a unix socket, which no page of a browser reaches.
func TestHostsOfASocket(t *testing.T) {
	a := newFixture(t)
	socket := func(r *http.Request) {
		*r = *r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Name: "/run/x.sock", Net: "unix"}))
	}
	for _, name := range []string{"", "evil.example", "peer", "%2Frun%2Fx.sock"} {
		require.Equal(t, 200, do(a.handler, "GET", "/v1/health", "", host(name), socket).Code, name)
	}
	a.refused(t, refusal{403, "forbidden", ""}, "GET /v1/health", "", host("peer"), socket, header("Sec-Fetch-Site", "cross-site"))
}

// TestOrigins: pages of other origins cannot use any method.
func TestOrigins(t *testing.T) {
	a := newFixture(t)
	for _, edit := range []func(*http.Request){
		header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Site", "same-site"),
		header("Origin", "https://evil.example"), header("Origin", "null"), header("Origin", "http://localhost:1"),
	} {
		a.refused(t, refusal{403, "forbidden", ""}, "POST "+own, text(t, "a"), edit)
		a.refused(t, refusal{403, "forbidden", ""}, "GET /v1/discovery/query?type=compute", "", edit)
		a.refused(t, refusal{403, "forbidden", ""}, "GET /v1/discovery/watch?type=compute", "", edit)
		a.refused(t, refusal{403, "forbidden", ""}, "OPTIONS "+own, "", edit)
		a.refused(t, refusal{403, "forbidden", ""}, "DELETE "+own+"/a", "", edit)
	}
	require.Empty(t, a.OwnAll())
	for _, edit := range []func(*http.Request){
		header("Sec-Fetch-Site", "same-origin"), header("Sec-Fetch-Site", "none"), header("Origin", "http://localhost:8500"),
	} {
		require.Equal(t, 200, do(a.handler, "GET", own, "", edit).Code)
		require.Equal(t, 400, do(a.handler, "POST", own, "{", edit).Code)
	}
}

// TestPage: everybody gets the page, also from the address without a path.
func TestPage(t *testing.T) {
	s := New(Config{Node: discoverytest.New(t).Node, Metrics: http.NotFoundHandler(), Guard: func(needed access.Role, next http.Handler, _ func(http.ResponseWriter, error)) http.Handler {
		if needed == access.RoleNone {
			return next
		}
		return http.NotFoundHandler()
	}})
	t.Cleanup(s.Close)
	require.Equal(t, "/ui/", do(s.Handler(), "GET", "/", "").Header().Get("Location"))
	page := do(s.Handler(), "GET", "/ui/", "")
	require.Equal(t, 200, page.Code)
	require.Contains(t, page.Header().Get("Content-Security-Policy"), "default-src 'none'")
}

func TestRoutes(t *testing.T) {
	a := newFixture(t)
	for _, path := range []string{"/v1", "/v1/discovery", own + "/", own + "/a/b", own + ":bulk", "/v2/status", "/V1/status", "/v1/status/", "/v1/discovery/records:batch/a"} {
		a.refused(t, noRoute(), "GET "+path, "")
	}
	for path, allow := range map[string]string{
		own: "GET, HEAD, POST", own + ":batch": "POST", own + "/a": "DELETE, GET, HEAD, PUT",
		"/v1/discovery/query": "GET, HEAD, POST", "/v1/discovery/watch": "GET, HEAD",
		"/v1/discovery/resolve": "GET, HEAD", "/v1/status": "GET, HEAD", "/v1/metrics": "GET, HEAD", "/metrics": "GET, HEAD", "/readyz": "GET, HEAD",
	} {
		for _, method := range []string{"PATCH", "OPTIONS", "TRACE", "BREW"} {
			got := a.refused(t, refusal{405, "method_not_allowed", "method"}, method+" "+path, "")
			require.Equal(t, allow, got.Header().Get("Allow"), path)
			require.Equal(t, method, got.json["value"])
		}
	}
}

// TestPathsAreClean: an unclean path is refused, never redirected.
func TestPathsAreCleaned(t *testing.T) {
	a := newFixture(t)
	for _, path := range []string{"//evil.example/v1/status", "/v1/../v1/status", "/v1//status", "/v1/status/.", "//"} {
		got := do(a.handler, "GET", "/", "", func(r *http.Request) { r.URL.Path = path })
		require.GreaterOrEqual(t, got.Code, 300, path)
		require.Less(t, got.Code, 500, path)
		require.False(t, strings.HasPrefix(got.Header().Get("Location"), "//"), got.Header().Get("Location"))
	}
}

// TestHead: HEAD answers like GET, and closes a watch at once.
func TestHead(t *testing.T) {
	_, url := listening(t)
	for _, path := range []string{"/v1/status", own, "/v1/discovery/query?type=x", "/v1/discovery/watch?type=x"} {
		resp, err := http.Head(url + path)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 200, resp.StatusCode, path)
	}
	resp, err := http.Head(url + "/v1/discovery/watch")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 400, resp.StatusCode)
	http.DefaultClient.CloseIdleConnections()
}

func TestContentTypeDoesNotCount(t *testing.T) {
	a := newFixture(t)
	for id, kind := range map[string]string{"a": "application/x-www-form-urlencoded", "b": "text/plain", "c": "application/json; charset=utf-8", "d": ""} {
		require.Equal(t, 201, do(a.handler, "POST", own, text(t, id), header("Content-Type", kind)).Code)
	}
}

// TestLargeBodies over a real connection: the refusal arrives although the client writes on. The client of net/http may report its broken write instead of the answer.
func TestLargeBodies(t *testing.T) {
	a, url := listening(t)
	for _, path := range []string{own, "/v1/discovery/query"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		require.NoError(t, err)
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", path, 10<<20, strings.Repeat("x", 10<<20))
		}()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, 413, resp.StatusCode)
		require.NoError(t, conn.Close())
		<-written
	}
	require.Empty(t, a.OwnAll())
}

func TestClosedBeforeServed(t *testing.T) {
	s := New(Config{Metrics: http.NotFoundHandler()})
	s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, s.Serve(l))
	require.Error(t, l.Close(), "the listener was taken over")
}

func TestServeFails(t *testing.T) {
	s := New(Config{Metrics: http.NotFoundHandler()})
	t.Cleanup(s.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.ErrorIs(t, s.Serve(l), fault.Internal)
}

// listening returns a server on loopback and its address.
func listening(t testing.TB) (*fixture, string) {
	t.Helper()
	a := newFixture(t)
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- a.Serve(l) }()
	t.Cleanup(func() {
		a.Server.Close()
		require.NoError(t, <-done)
	})
	return a, "http://" + l.Addr().String()
}

func TestLogLevel(t *testing.T) {
	level := "info"
	a := newAgentFixture(t, func(c *Config) {
		c.SetLogLevel = func(next string) (string, error) {
			if next != "debug" {
				return "", fault.Invalidf("level", next, "must be debug")
			}
			before := level
			level = next
			return before, nil
		}
	})
	require.Equal(t, object{"level": "debug", "previous": "info"}, a.ok(t, 200, "PUT /v1/log-level", `{"level":"debug"}`).json)
	require.Equal(t, "debug", level)
	a.refused(t, invalid("level"), "PUT /v1/log-level", `{"level":"loud"}`)
	a.refused(t, invalid("levle"), "PUT /v1/log-level", `{"levle":"debug"}`)
	a.refused(t, invalid("body"), "PUT /v1/log-level", "")
	require.Equal(t, access.RoleAdmin, roleOf(t, "PUT /v1/log-level"))
}

func roleOf(t *testing.T, pattern string) access.Role {
	for _, r := range wholeTable() {
		if r.pattern == pattern {
			return r.role
		}
	}
	require.Fail(t, "no such route", pattern)
	return 0
}
