package daemon

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/daemon/recent"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestCallersAreBounded: callers have a quarter of the descriptors.
func TestCallersAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refusals := make(chan access.Refusal)
	c := newCallers(400, 0, func(r access.Refusal) { refusals <- r })
	bounded := listeners{http: inner}.bounded(c)
	require.Nil(t, bounded.grpc)
	l := bounded.http
	defer l.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	for range 75 + 2 { // one client leaves a quarter of the 100 places
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
	}
	require.Equal(t, "connections", (<-refusals).Resource)
	<-refusals
	require.NoError(t, l.Close())
	<-ended
	require.Equal(t, 75, c.Used())
}

// TestPlaces: the operator learns which pool refused whom by a metric and one line a minute, and of a full pool by a
// condition, which ends a minute after the last refusal.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		to := slog.New(slog.NewTextHandler(&log, nil))
		gatherer := prometheus.NewRegistry()
		m, err := metrics.NewDiscovery(gatherer)
		require.NoError(t, err)
		conditions := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
		memory := recent.New(time.Now)
		p := newPlaces(m, conditions, memory, to)
		defer p.close()
		pool := access.NewPool("watches", 4, p.refused)
		var release func()
		for range 3 {
			release, err = pool.Take(access.With(t.Context(), access.Principal{Name: "greedy"}), "test")
			require.NoError(t, err)
		}
		for range 2 {
			_, err = pool.Take(access.With(t.Context(), access.Principal{Name: "greedy"}), "test")
			require.ErrorIs(t, err, fault.PoolExhausted)
		}
		require.Empty(t, conditions.ActiveNames(), "others have places")
		require.Equal(t, 1, strings.Count(log.String(), "a caller got no place of a pool"), log.String())
		require.Contains(t, log.String(), "resource=watches reason=share caller=greedy")
		notes, _ := memory.Since(time.Time{})
		require.Len(t, notes, 1)
		require.Equal(t, recent.Refused, notes[0].Subject)
		require.NotContains(t, notes[0].Text, "greedy", "everybody may read notes")

		_, err = pool.Take(t.Context(), "test")
		require.NoError(t, err)
		time.Sleep(exhausted)
		_, err = pool.Take(t.Context(), "test")
		require.ErrorIs(t, err, fault.PoolExhausted)
		require.Equal(t, []string{"pool_exhausted"}, conditions.ActiveNames())
		require.Equal(t, 2, strings.Count(log.String(), "a caller got no place of a pool"), log.String())
		release()
		time.Sleep(exhausted + time.Second)
		require.Empty(t, conditions.ActiveNames())

		p.ofPeers(access.Refusal{Resource: "watches", Err: err})
		require.Contains(t, log.String(), "resource=peer_watches")
		p.ofGroup("@greedy", fault.Exhausted("machine", "leases", true, "too many"))
		require.Contains(t, log.String(), "resource=group_leases reason=share caller=@greedy")
		require.Empty(t, conditions.ActiveNames())
		p.ofGroup("@modest", fault.Exhausted("machine", "leases", false, "too many"))
		require.Equal(t, []string{"pool_exhausted"}, conditions.ActiveNames())
		families, err := gatherer.Gather()
		require.NoError(t, err)
		counted := 0
		for _, f := range families {
			if f.GetName() == "blackhole_places_refused_total" {
				counted = len(f.GetMetric())
			}
		}
		require.Equal(t, 5, counted, "watches full, watches share, peer_watches share, group_leases both")
	})
}
