package coordtest

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// queues are the promises about waiting for a lock.
func queues() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"claims are served in order":             queueOrder,
		"Held, Lease expired: handed on":         queueHandedOn,
		"who died in the queue is not granted":   queueDead,
		"the lease ends while its claim waits":   queueLeaseEnds,
		"time to wait passes":                    queueTimeout,
		"time to wait, granted before":           queueInTime,
		"the context ends":                       queueCanceled,
		"the deadline passes":                    queueDeadline,
		"the context has ended":                  queueEnded,
		"one lease waits twice":                  queueTwice,
		"one lease waits twice, one loses heart": queueTwiceTimeout,
	}
}

func queueOrder(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	const waiters = 6
	var claims [waiters]*claim
	var all [waiters]coord.LeaseID
	owners := [2]Owner{w.Alice, w.Bob}
	for i := range all {
		all[waiters-1-i] = w.lease(owners[i%2]) // descending ids: they must not matter
	}
	for i := range claims {
		claims[i] = w.queued(owners[(i+1)%2], "db", all[i], i+1)
	}
	require.Equal(w.t, all[:], leasesOf(w.lock("db").Waiting))
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	for i, c := range claims {
		granted := c.granted()
		require.Greater(w.t, granted.Token, token)
		token = granted.Token
		for _, later := range claims[i+1:] {
			later.pending()
		}
		w.must(owners[(i+1)%2], &ops.Unlock{Name: "db", Lease: all[i], Token: token})
	}
}

func queueHandedOn(w *fixture) {
	_, token := w.holder(w.Alice, "db")
	lease := w.must(w.Bob, &ops.LeaseGrant{TTL: 10 * w.TTL.Milliseconds()}).Lease
	waiting := w.queued(w.Bob, "db", lease, 1)
	w.Pass(w.TTL / 2)
	waiting.pending()
	w.Pass(w.TTL)
	require.Greater(w.t, waiting.granted().Token, token)
}

func queueDead(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	w.queued(w.Bob, "db", w.lease(w.Bob), 1)
	third := w.must(w.Alice, &ops.LeaseGrant{TTL: 10 * w.TTL.Milliseconds()}).Lease
	waiting := w.queued(w.Alice, "db", third, 2)
	for range 2 { // the second lease ends
		w.Pass(w.TTL * 2 / 3)
		w.keep(w.Alice, lease)
	}
	w.waiting("db", 1)
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	waiting.granted()
}

func queueLeaseEnds(w *fixture) {
	w.holder(w.Alice, "db")
	lease := w.lease(w.Bob)
	waiting := w.queued(w.Bob, "db", lease, 1)
	w.must(w.Bob, &ops.LeaseRevoke{ID: lease})
	_, err := waiting.end()
	w.refused(fault.NotFound, "lease", err)
	require.Empty(w.t, w.lock("db").Waiting)
}

func queueTimeout(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	second, third := w.lease(w.Bob), w.lease(w.Alice)
	patience := w.TTL / 10
	short := w.acquire(w.ctx(), w.Bob, locking("db", second), patience)
	w.waiting("db", 1)
	long := w.queued(w.Alice, "db", third, 2)
	w.Pass(patience)
	r, err := short.end()
	require.NoError(w.t, err)
	require.False(w.t, r.Lock.Granted)
	require.Zero(w.t, r.Lock.Count)
	require.Equal(w.t, []coord.LeaseID{third}, leasesOf(w.lock("db").Waiting), "the place is given back")
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	long.granted()
}

func queueInTime(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	second := w.must(w.Bob, &ops.LeaseGrant{TTL: 10 * w.TTL.Milliseconds()}).Lease
	waiting := w.acquire(w.ctx(), w.Bob, locking("db", second), w.TTL)
	w.waiting("db", 1)
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	granted := waiting.granted()
	w.Pass(2 * w.TTL)
	require.Equal(w.t, granted.Token, w.lock("db").Holding[0].Token, "what was granted is not taken back")
}

func queueCanceled(w *fixture) {
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	w.queueGivesUp(ctx, cancel, fault.Canceled)
}

func queueDeadline(w *fixture) {
	ctx, cancel := context.WithTimeout(w.ctx(), 50*time.Millisecond)
	defer cancel()
	w.queueGivesUp(ctx, func() {}, fault.Timeout)
}

func (w *fixture) queueGivesUp(ctx context.Context, end func(), kind fault.Kind) {
	lease, token := w.holder(w.Alice, "db")
	second := w.lease(w.Bob)
	waiting := w.acquire(ctx, w.Bob, locking("db", second), coord.NoLimit)
	if kind == fault.Canceled { // otherwise it may have ended
		w.waiting("db", 1)
	}
	end()
	_, err := waiting.end()
	require.ErrorIs(w.t, err, kind)
	w.waiting("db", 0)
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	require.Empty(w.t, w.lock("db"), "the place is given back")
}

func queueEnded(w *fixture) {
	ctx, cancel := context.WithCancel(w.ctx())
	cancel()
	lease := w.lease(w.Alice)
	_, err := w.acquire(ctx, w.Alice, locking("db", lease), coord.NoLimit).end()
	require.ErrorIs(w.t, err, fault.Canceled)
	_, _, err = w.Alice.Do(ctx, ops.Command{Owner: w.Alice.Name, Op: write(put("a", ""))})
	require.ErrorIs(w.t, err, fault.Canceled)
	_, _, err = w.Alice.KeepAlive(ctx, w.Alice.Name, []coord.LeaseID{lease})
	require.ErrorIs(w.t, err, fault.Canceled)
	_, _, err = w.Range(ctx, ops.Query{}, ops.Linearizable)
	require.ErrorIs(w.t, err, fault.Canceled)
	_, _, err = w.Locks(ctx, ops.LockQuery{})
	require.ErrorIs(w.t, err, fault.Canceled)
	_, _, err = w.Leases(ctx, ops.LeaseQuery{})
	require.ErrorIs(w.t, err, fault.Canceled)
	_, err = w.Group(ctx)
	require.ErrorIs(w.t, err, fault.Canceled)
	require.Equal(w.t, coord.FirstRevision, w.revision())
}

func queueTwice(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	second := w.lease(w.Bob)
	one := w.queued(w.Bob, "db", second, 1)
	two := w.acquire(w.ctx(), w.Bob, locking("db", second), coord.NoLimit)
	require.Eventually(w.t, func() bool { return w.lock("db").Waiting[0].Count == 2 }, patient, time.Millisecond)
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	require.Equal(w.t, one.granted().Token, two.granted().Token)
	require.Equal(w.t, uint32(2), w.lock("db").Holding[0].Count)
}

func queueTwiceTimeout(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	second := w.lease(w.Bob)
	long := w.queued(w.Bob, "db", second, 1)
	patience := w.TTL / 10
	short := w.acquire(w.ctx(), w.Bob, locking("db", second), patience)
	require.Eventually(w.t, func() bool { return w.lock("db").Waiting[0].Count == 2 }, patient, time.Millisecond)
	w.Pass(patience)
	r, err := short.end()
	require.NoError(w.t, err)
	require.False(w.t, r.Lock.Granted)
	long.pending()
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	require.Equal(w.t, uint32(1), long.granted().Count)
}
