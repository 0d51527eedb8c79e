package coordination_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
)

// TestLostLocks: each peer hears of a lock whose holder's lease expired, and of no other end of a claim.
func TestLostLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3)
		var mu sync.Mutex
		heard := make([][]string, len(w.peers))
		for i, p := range w.peers {
			p.lost = func(locks []string) {
				mu.Lock()
				defer mu.Unlock()
				heard[i] = append(heard[i], locks...)
			}
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		at := w.peers[0]
		do := func(op ops.Op) ops.Result {
			r, _, err := ops.Of(at).Do(t.Context(), ops.Command{Owner: "@a", Op: op})
			require.NoError(t, err)
			return r
		}
		long, short := lease(t, at, "@a", time.Hour), lease(t, at, "@a", 10*time.Second)
		waits := func(name string) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, _, err := ops.Of(at).Acquire(context.WithoutCancel(t.Context()), ops.Command{Owner: "@a", Op: &ops.Lock{Name: name, Lease: short, Wait: true}}, time.Minute)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		held := do(&ops.Lock{Name: "released", Lease: long})
		do(&ops.Unlock{Name: "released", Lease: long, Token: held.Lock.Token})
		revoked := lease(t, at, "@a", time.Hour)
		do(&ops.Lock{Name: "revoked", Lease: revoked})
		do(&ops.LeaseRevoke{ID: revoked})
		do(&ops.Lock{Name: "waited for", Lease: long})
		gaveUp := waits("waited for")
		passed := do(&ops.Lock{Name: "passed on", Lease: long})
		next := waits("passed on")
		time.Sleep(time.Second)
		do(&ops.Unlock{Name: "passed on", Lease: long, Token: passed.Lock.Token})
		require.NoError(t, <-next)
		do(&ops.Lock{Name: "held", Lease: short})
		require.Error(t, <-gaveUp)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		for i := range heard {
			require.ElementsMatch(t, []string{"held", "passed on"}, heard[i], i)
		}
	})
}
