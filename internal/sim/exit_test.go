package sim

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
)

func usable() query.Query { return query.Query{Type: "database", Limit: queries.MaxLimit} }

// trade registers three offers at each peer, and waits until all find all.
func (w *cluster) trade(t *testing.T) {
	for i, p := range w.peers {
		for n := range 3 {
			w.register(p, offerOf(fmt.Sprintf("of%d-%d", i, n)))
		}
	}
	time.Sleep(quieting)
	for _, p := range w.peers {
		require.Len(t, w.found(p), 3*len(w.peers), "at %s", p.id)
	}
}

// TestExit has peers of a network stop in order. Their offers leave answers within a second, with the reason, and return with
// their next start.
func TestExit(t *testing.T) {
	peers, leavers := 16, 3
	if *manyDeaths {
		peers, leavers = 40, 8
	}
	var gone []time.Duration
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, Params{Peers: peers, Seed: 1, RTT: 50 * time.Millisecond})
		w.join(peers)
		w.trade(t)
		for _, leaver := range w.peers[peers-leavers:] {
			gone = append(gone, w.watchEnd(leaver, func() {
				leaver.discovery.Leave(t.Context())
				require.NoError(t, leaver.close())
			})...)
			others := w.alive()
			a, err := others[0].discovery.Query(t.Context(), usable())
			require.NoError(t, err)
			at := slices.IndexFunc(a.Excluded, func(e query.Excluded) bool { return e.Provider == leaver.id.String() })
			require.GreaterOrEqual(t, at, 0, "the answer names it")
			require.Equal(t, "stopped by its provider", a.Excluded[at].Reason)
		}

		back := w.peers[peers-1]
		again, err := startPeer(w.wire, back.place, w.doors(), 0)
		require.NoError(t, err)
		w.peers = append(w.peers, again)
		time.Sleep(settling)
		for _, p := range w.alive() {
			require.Len(t, w.found(p), 3*(peers-leavers+1), "at %s", p.id)
		}
		require.Empty(t, w.failures)
	})
	s := spreadOf(gone)
	t.Logf("%d peers, %d stop: out of another peer's answers after p50 %v ms, p95 %v ms, p99 %v ms, at most %v ms", peers, leavers, s.P50, s.P95, s.P99, s.Max)
	require.LessOrEqual(t, s.P99, 1000.0)
}

// watchEnd ends a peer. It returns how long its offers stayed in the answers of each other peer.
func (w *cluster) watchEnd(leaver *simPeer, end func()) []time.Duration {
	var mu sync.Mutex
	var gone []time.Duration
	began := time.Now()
	var all sync.WaitGroup
	for _, p := range w.alive() {
		if p == leaver {
			continue
		}
		all.Go(func() {
			for slices.ContainsFunc(w.found(p), func(owner string) bool { return owner == leaver.id.String() }) {
				if time.Since(began) > time.Minute {
					w.fail("%s still sells %s a minute after its end", p.id, leaver.id)
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, time.Since(began))
		})
	}
	leaver.dead = true
	end()
	all.Wait()
	return gone
}

// found returns the providers of the results of a peer.
func (w *cluster) found(p *simPeer) []string {
	a, err := p.discovery.Query(w.t.Context(), usable())
	if err != nil {
		w.fail("query at %s: %v", p.id, err)
		return nil
	}
	owners := make([]string, len(a.Results))
	for i, r := range a.Results {
		owners[i] = r.Record.Name().Provider.String()
	}
	return owners
}
