package httpapi

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	planes "github.com/blackhole/blackhole/internal/agent"
	"github.com/blackhole/blackhole/internal/agent/health"
	instances "github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// alive serves the real agent plane of one peer in virtual time, on a disk in memory; dial reaches
// what it checks.
func alive(t *testing.T, disk vfs.FS, dial func() (net.Conn, error)) (c caller, end func()) {
	t.Helper()
	plane, err := planes.New(planes.Config{
		Registry: instances.Config{Dir: "instances", FS: disk, Self: "me"}, Now: time.Now, Validate: true,
		Checks: health.Config{Random: rand.New(rand.NewPCG(1, 2)).Uint64, Dial: func(context.Context, string, string) (net.Conn, error) { return dial() }},
	})
	require.NoError(t, err)
	h, p := discoverytest.New(t), newPipes()
	s := New(Config{
		Registrar: h, Finder: h, Node: h.Node, Metrics: http.NotFoundHandler(), Guard: conforming(t),
		Agent: &Agent{Registrar: plane, Catalog: plane, Census: plane.Count, Storage: plane.Storage, Removed: plane.Removed},
	})
	done := make(chan error, 1)
	go func() { done <- s.Serve(p) }()
	transport := &http.Transport{DialContext: p.dial}
	end = sync.OnceFunc(func() {
		transport.CloseIdleConnections()
		s.Close()
		require.NoError(t, <-done)
		require.NoError(t, plane.Close())
	})
	t.Cleanup(end)
	return caller{&http.Client{Transport: transport}, "http://localhost"}, end
}

// TestLife: a crashed service is unhealthy after 30 s and removed after 60 s, for watchers too. It
// also covers an instance with a check, which alone removes nothing, and a restart.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead atomic.Bool
		disk := vfs.NewMem()
		dial := func() (net.Conn, error) {
			if dead.Load() {
				return nil, fault.New("test", fault.Unavailable, "nobody listens")
			}
			ours, theirs := net.Pipe()
			_ = theirs.Close()
			return ours, nil
		}
		a, end := alive(t, disk, dial)
		a.refused(t, refusal{422, "dependency_not_found", "metadata.dependencies"}, "POST /v1/services", service("orders", "o"))
		long := a.ok(t, 201, "POST /v1/services/"+strings.Repeat("x", 63)+"/instances", with(payment, without("health_check")))
		require.Contains(t, long.json["warnings"].([]any)[0], "DNS cannot ask for _xxx")
		long = a.ok(t, 201, "POST /v1/services", service(strings.Repeat("y", 64), "y", set("metadata", object{"tags": []any{"core"}})))
		require.Contains(t, long.json["warnings"].([]any)[0], "a label has 64 bytes, limit 63")
		a.ok(t, 204, "DELETE /v1/services/"+strings.Repeat("y", 64)+"/y", "")
		none := set("metadata", object{"tags": []any{"core"}})
		a.ok(t, 201, "POST /v1/services", service("orders", "o", none))
		s := a.stream(t, "/v1/services/orders/watch?health=any")
		seen := s.changes()
		require.Contains(t, <-seen, `"id":"o"`)
		const one = "/v1/services/orders/o"
		status := func() any { return a.ok(t, 200, "GET "+one, "").json["status"] }

		time.Sleep(29 * time.Second)
		a.ok(t, 204, "PUT "+one+"/heartbeat", "")
		time.Sleep(29 * time.Second)
		require.Equal(t, "up", status())
		time.Sleep(2 * time.Second)
		require.Equal(t, "unhealthy", status())
		require.Equal(t, 1.0, a.ok(t, 200, "GET /v1/health", "").json["services_unhealthy"])
		require.Contains(t, <-seen, `"health":"UNHEALTHY"`)
		time.Sleep(30 * time.Second)
		a.refused(t, missing(""), "GET "+one, "")
		require.Contains(t, <-seen, `"type":"DELETED"`)
		gone := a.refused(t, refusal{410, "service_gone", "id"}, "PUT "+one+"/heartbeat", "")
		require.NotEmpty(t, gone.json["deregistered_at"])

		tcp := set("health_check", object{"type": "TCP", "interval": "5s", "unhealthy_threshold": 2})
		lease := a.ok(t, 201, "POST "+payments, with(payment, tcp)).json["lease_id"].(string)
		time.Sleep(15 * time.Second)
		require.Len(t, a.ok(t, 200, "GET "+payments, "").instances(t), 1)
		s.resp.Body.Close()
		end()

		a, _ = alive(t, disk, dial)
		require.Equal(t, lease, a.ok(t, 200, "POST "+payments, with(payment, tcp)).json["lease_id"], "it survived")
		time.Sleep(15 * time.Second)
		require.Len(t, a.ok(t, 200, "GET "+payments, "").instances(t), 1)
		dead.Store(true)
		time.Sleep(15 * time.Second)
		require.Equal(t, "DOWN", a.ok(t, 200, "GET "+payments+"/payment-1", "").json["health"])
		require.Empty(t, a.ok(t, 200, "GET "+payments, "").instances(t))
		time.Sleep(2 * time.Hour)
		require.Equal(t, "DOWN", a.ok(t, 200, "GET "+payments+"/payment-1", "").json["health"], "its check alone removes it never")
		dead.Store(false)
		time.Sleep(15 * time.Second)
		require.Len(t, a.ok(t, 200, "GET "+payments, "").instances(t), 1, "nobody had to register it again")

		a.ok(t, 200, "PUT /v1/leases/"+lease+"/renew", "")
		dead.Store(true)
		time.Sleep(28 * time.Second)
		require.Equal(t, "DOWN", a.ok(t, 200, "GET "+payments+"/payment-1", "").json["health"])
		time.Sleep(10 * time.Second)
		require.Equal(t, "neither a heartbeat nor a passed check came for 30s",
			a.ok(t, 200, "GET /v1/removed?service=payment", "").json["removed"].([]any)[0].(object)["cause"])
		a.refused(t, refusal{400, "invalid_parameter", "service"}, "GET /v1/removed?service=a%20b", "")
		a.refused(t, missing(""), "GET "+payments+"/payment-1", "") // heartbeats that stop remove it after the 30 s of this dialect
		a.refused(t, refusal{410, "service_gone", "id"}, "PUT /v1/leases/"+lease+"/renew", "")
	})
}

// changes returns the data of events, without comments, in order.
func (e feed) changes() <-chan string {
	out := make(chan string, 16)
	go func() {
		for e.Scan() {
			if data, ok := strings.CutPrefix(e.Text(), "data: "); ok {
				out <- data
			}
		}
	}()
	return out
}
