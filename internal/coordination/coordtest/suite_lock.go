package coordtest

import (
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// locks tests locks: the table "Lock State Machine" of the low-level design, and this project's
// additions.
func locks() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"Available, Lock request: Held":                lockTaken,
		"Available, TryLock request: Held":             lockTried,
		"Held, TryLock request: nothing changes":       lockMissed,
		"Held, Release request: Available":             lockReleased,
		"Held, Renew request: Held":                    leaseKept,
		"Held, Lock request (same holder): reentrant":  lockAgain,
		"Held, Lock request (different): queued":       lockQueued,
		"unlock names lease and token":                 unlockNames,
		"lock refuses":                                 lockRefuses,
		"lock as it stands":                            lockStands,
		"locks are listed":                             locksListed,
		"many claims come in pages":                    lockPages,
		"shared":                                       lockShared,
		"permits":                                      lockPermits,
		"modes do not mix":                             lockModes,
		"a write is guarded by a token":                lockGuards,
		"the queue is bounded":                         lockBounded,
		"names are any text":                           lockNames,
		"metadata stays until there is other metadata": lockMetadata,
	}
}

func lockTaken(w *fixture) {
	lease := w.lease(w.Alice)
	r, header, err := w.Alice.Acquire(w.ctx(), ops.Command{Owner: w.Alice.Name, Op: &ops.Lock{Name: "db", Lease: lease, Wait: true}}, coord.NoLimit)
	require.NoError(w.t, err)
	w.headed(header)
	require.True(w.t, r.Lock.Granted)
	require.Equal(w.t, coord.LockKey("db", lease), r.Lock.Key)
	require.Equal(w.t, uint32(1), r.Lock.Count)
	require.Equal(w.t, coord.Revision(r.Lock.Token), w.revision())
	require.GreaterOrEqual(w.t, header.Revision, coord.Revision(r.Lock.Token))
}

func lockTried(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	require.Equal(w.t, coord.Revision(token), w.revision())
	require.Equal(w.t, []coord.LeaseID{lease}, leasesOf(w.lock("db").Holding))
}

func lockMissed(w *fixture) {
	w.holder(w.Alice, "db")
	before, lease := w.revision(), w.lease(w.Bob)
	r := w.must(w.Bob, &ops.Lock{Name: "db", Lease: lease})
	require.False(w.t, r.Lock.Granted)
	require.Zero(w.t, r.Lock.Token, "a token that holds nothing could be mistaken for one that does")
	require.Zero(w.t, r.Lock.Count)
	require.Equal(w.t, before, w.revision())
	require.Empty(w.t, w.lock("db").Waiting)
}

func lockReleased(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	r := w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	require.Zero(w.t, r.Lock.Count)
	require.Empty(w.t, w.lock("db"))
	_, next := w.holder(w.Bob, "db")
	require.Greater(w.t, next, token, "successive holders have ever greater tokens")
}

func lockAgain(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	for count := uint32(2); count <= 3; count++ {
		again := w.acquire(w.ctx(), w.Alice, locking("db", lease), coord.NoLimit).granted()
		require.Equal(w.t, []any{token, count}, []any{again.Token, again.Count})
	}
	r := w.must(w.Alice, &ops.Lock{Name: "db", Lease: lease})
	require.Equal(w.t, []any{true, token, uint32(4)}, []any{r.Lock.Granted, r.Lock.Token, r.Lock.Count})
	for count := uint32(3); ; count-- {
		require.Len(w.t, w.lock("db").Holding, 1)
		r = w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
		require.Equal(w.t, count, r.Lock.Count)
		if count == 0 {
			break
		}
	}
	require.Empty(w.t, w.lock("db"))
}

func lockQueued(w *fixture) {
	first, token := w.holder(w.Alice, "db")
	second := w.lease(w.Bob)
	waiting := w.queued(w.Bob, "db", second, 1)
	state := w.lock("db")
	require.Equal(w.t, []coord.LeaseID{first}, leasesOf(state.Holding))
	require.Equal(w.t, []coord.LeaseID{second}, leasesOf(state.Waiting))
	waiting.pending()
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: first, Token: token})
	granted := waiting.granted()
	require.Equal(w.t, state.Waiting[0].Token, granted.Token, "the token is the same from the first answer to the last")
	require.Greater(w.t, granted.Token, token)
}

// Unlock by name alone, repeated, would take a newer holder's lock.
func unlockNames(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	second := w.lease(w.Alice)
	waiting := w.queued(w.Alice, "db", second, 1)
	next := w.lock("db").Waiting[0].Token
	for _, wrong := range []*ops.Unlock{
		{Name: "db", Lease: second, Token: token}, {Name: "db", Lease: lease, Token: next},
		{Name: "db", Lease: lease, Token: token + 1000}, {Name: "db", Lease: lease}, {Name: "other", Lease: lease, Token: token},
	} {
		w.mustNot(w.Alice, fault.NotFound, "token", wrong)
	}
	w.mustNot(w.Alice, fault.Conflict, "token", &ops.Unlock{Name: "db", Lease: second, Token: next})
	waiting.pending()
	unlock := &ops.Unlock{Name: "db", Lease: lease, Token: token}
	w.must(w.Alice, unlock)
	require.Equal(w.t, next, waiting.granted().Token)
	w.mustNot(w.Alice, fault.NotFound, "token", unlock)
	require.Equal(w.t, []coord.LeaseID{second}, leasesOf(w.lock("db").Holding))
}

func lockRefuses(w *fixture) {
	lease := w.lease(w.Alice)
	for _, c := range []struct {
		kind  fault.Kind
		field string
		op    ops.Lock
	}{
		{fault.Invalid, "name", ops.Lock{Lease: lease}},
		{fault.TooLarge, "name", ops.Lock{Name: strings.Repeat("x", 2000), Lease: lease}},
		{fault.NotFound, "lease", ops.Lock{Name: "db"}},
		{fault.NotFound, "lease", ops.Lock{Name: "db", Lease: 1 << 40}},
		{fault.Invalid, "mode", ops.Lock{Name: "db", Lease: lease, Mode: coord.Permit + 1}},
		{fault.Invalid, "permits", ops.Lock{Name: "db", Lease: lease, Mode: coord.Permit}},
		{fault.Invalid, "permits", ops.Lock{Name: "db", Lease: lease, Permits: 2}},
		{fault.TooLarge, "metadata", ops.Lock{Name: "db", Lease: lease, Metadata: make([]byte, 100_000)}},
	} {
		w.mustNot(w.Alice, c.kind, c.field, &c.op)
		c.op.Wait = true
		_, err := w.acquire(w.ctx(), w.Alice, ops.Command{Op: &c.op}, coord.NoLimit).end()
		w.refused(c.kind, c.field, err)
	}
	require.Equal(w.t, coord.FirstRevision, w.revision(), "what is refused changes nothing")
	for _, op := range []ops.Op{&ops.Lock{Name: "db", Lease: lease}, &ops.LeaseGrant{TTL: 30_000}} {
		_, err := w.acquire(w.ctx(), w.Alice, ops.Command{Op: op}, coord.NoLimit).end()
		w.refused(fault.Invalid, "op", err)
	}
}

func lockStands(w *fixture) {
	first, second := w.lease(w.Alice), w.lease(w.Bob)
	r := w.must(w.Alice, &ops.Lock{Name: "db", Lease: first, Metadata: []byte("migration\x00")})
	w.queued(w.Bob, "db", second, 1)
	w.keep(w.Alice, first)
	w.Pass(w.TTL / 4)
	w.keep(w.Alice, first)
	state := w.lock("db")
	held, waits := state.Holding[0], state.Waiting[0]
	require.Equal(w.t, coord.Claim{Lock: "db", Holder: w.Alice.Name, Count: 1, Metadata: []byte("migration\x00")}, held.Claim)
	require.Equal(w.t, []any{r.Lock.Key, first, r.Lock.Token}, []any{held.Key, held.Lease, held.Token})
	require.Equal(w.t, []any{coord.Revision(r.Lock.Token), int64(1)}, []any{held.ModRevision, held.Version})
	require.GreaterOrEqual(w.t, held.Age, w.TTL/4)
	require.GreaterOrEqual(w.t, waits.Age, w.TTL/4)
	require.Equal(w.t, []any{w.Bob.Name, second}, []any{waits.Holder, waits.Lease})
	require.Greater(w.t, waits.Token, held.Token)
	_, _, err := w.Locks(w.ctx(), ops.LockQuery{Name: "none"})
	w.refused(fault.NotFound, "name", err)
}

func locksListed(w *fixture) {
	for _, name := range []string{"b/2", "a", "b/1", "c", "b/3"} {
		w.holder(w.Alice, name)
	}
	list := func(q ops.LockQuery) (names []string) {
		states, _, err := w.Locks(w.ctx(), q)
		require.NoError(w.t, err)
		for _, s := range states {
			require.Len(w.t, s.Holding, 1)
			names = append(names, s.Name)
		}
		return names
	}
	require.Equal(w.t, []string{"a", "b/1", "b/2", "b/3", "c"}, list(ops.LockQuery{}))
	require.Equal(w.t, []string{"b/1", "b/2", "b/3"}, list(ops.LockQuery{Prefix: "b/"}))
	require.Equal(w.t, []string{"b/1", "b/2"}, list(ops.LockQuery{Prefix: "b/", Limit: 2}))
	require.Equal(w.t, []string{"b/3"}, list(ops.LockQuery{Prefix: "b/", After: "b/2", Limit: 2}))
	require.Equal(w.t, []string{"c"}, list(ops.LockQuery{After: "b/3"}))
	require.Empty(w.t, list(ops.LockQuery{Prefix: "none"}))
}

// lockPages: the claims of a lock come in pages that are bounded in bytes, each claim once.
func lockPages(w *fixture) {
	const claims = 40
	for range claims {
		w.must(w.Alice, &ops.Lock{Name: "db", Lease: w.lease(w.Alice), Mode: coord.Shared, Metadata: make([]byte, coord.MaxMetadata)})
	}
	q := ops.LockQuery{Name: "db", Bytes: 1 << 20}
	var tokens []coord.Token
	pages, left := 0, 1
	for ; left > 0; pages++ {
		states, _, err := w.Locks(w.ctx(), q)
		require.NoError(w.t, err)
		lock := states[0]
		for _, c := range lock.Holding {
			tokens = append(tokens, c.Token)
		}
		left, q.AfterToken = lock.LeftOut, lock.Last()
		require.Equal(w.t, claims-len(tokens), left)
	}
	require.Greater(w.t, pages, 1)
	require.Len(w.t, tokens, claims)
	require.IsIncreasing(w.t, tokens)
	whole := w.lock("db")
	require.Zero(w.t, whole.LeftOut)
	require.Len(w.t, whole.Holding, claims)
}

func sharing(name string, lease coord.LeaseID, mode coord.Mode, permits uint32) ops.Command {
	return ops.Command{Op: &ops.Lock{Name: name, Lease: lease, Mode: mode, Permits: permits, Wait: true}}
}

// Readers hold together. A writer waits for all of them, and later readers wait for the writer.
func lockShared(w *fixture) {
	reader := func(lease coord.LeaseID) *claim {
		return w.acquire(w.ctx(), w.Alice, sharing("db", lease, coord.Shared, 0), coord.NoLimit)
	}
	one, two, writer, late := w.lease(w.Alice), w.lease(w.Alice), w.lease(w.Bob), w.lease(w.Alice)
	first, second := reader(one).granted(), reader(two).granted()
	writing := w.queued(w.Bob, "db", writer, 1)
	waiting := reader(late)
	w.waiting("db", 2)
	state := w.lock("db")
	require.Equal(w.t, []coord.LeaseID{one, two}, leasesOf(state.Holding))
	require.Equal(w.t, []coord.LeaseID{writer, late}, leasesOf(state.Waiting))
	require.Equal(w.t, coord.Shared, state.Holding[1].Mode)
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: one, Token: first.Token})
	writing.pending()
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: two, Token: second.Token})
	granted := writing.granted()
	waiting.pending()
	w.must(w.Bob, &ops.Unlock{Name: "db", Lease: writer, Token: granted.Token})
	waiting.granted()
}

func lockPermits(w *fixture) {
	permit := func(lease coord.LeaseID) *claim {
		return w.acquire(w.ctx(), w.Alice, sharing("db", lease, coord.Permit, 2), coord.NoLimit)
	}
	one, two, three := w.lease(w.Alice), w.lease(w.Alice), w.lease(w.Alice)
	first := permit(one).granted()
	permit(two).granted()
	waiting := permit(three)
	w.waiting("db", 1)
	require.Equal(w.t, uint32(2), w.lock("db").Waiting[0].Permits)
	missed := w.must(w.Alice, &ops.Lock{Name: "db", Lease: w.lease(w.Alice), Mode: coord.Permit, Permits: 2})
	require.False(w.t, missed.Lock.Granted)
	w.mustNot(w.Alice, fault.Conflict, "permits", &ops.Lock{Name: "db", Lease: w.lease(w.Alice), Mode: coord.Permit, Permits: 3})
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: one, Token: first.Token})
	waiting.granted()
	require.Equal(w.t, []coord.LeaseID{two, three}, leasesOf(w.lock("db").Holding))
}

func lockModes(w *fixture) {
	lease, _ := w.holder(w.Alice, "db")
	w.mustNot(w.Alice, fault.Conflict, "mode", &ops.Lock{Name: "db", Lease: lease, Mode: coord.Shared})
	other := w.lease(w.Bob)
	require.False(w.t, w.must(w.Bob, &ops.Lock{Name: "db", Lease: other, Mode: coord.Shared}).Lock.Granted)
}

func lockGuards(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	guarded := func(token coord.Token) *ops.Txn {
		return &ops.Txn{If: []ops.Compare{ops.IfHolds("db", token)}, Then: []ops.Step{put("schema", "7")}}
	}
	w.must(w.Alice, guarded(token))
	w.must(w.Bob, guarded(token)) // every owner may use the token
	w.unmet(w.Alice, 1, guarded(token+1))
	next := w.queued(w.Bob, "db", w.lease(w.Bob), 1)
	w.unmet(w.Bob, 1, guarded(w.lock("db").Waiting[0].Token))
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	w.unmet(w.Alice, 1, guarded(token))
	w.must(w.Bob, guarded(next.granted().Token))
	w.mustNot(w.Bob, fault.Conflict, "then[0].key", write(put(w.lock("db").Holding[0].Key, "mine")))
}

func lockBounded(w *fixture) {
	limits := coord.DefaultLimits()
	limits.Queue, limits.Claims = 2, 2
	require.NoError(w.t, w.Internal(w.ctx(), &ops.Configure{Limits: limits}))
	lease, _ := w.holder(w.Alice, "db")
	w.queued(w.Bob, "db", w.lease(w.Bob), 1)
	_, err := w.acquire(w.ctx(), w.Bob, locking("db", w.lease(w.Bob)), coord.NoLimit).end()
	w.refused(fault.PoolExhausted, "pool.queue", err)
	w.must(w.Alice, &ops.Lock{Name: "db", Lease: lease})
	w.mustNot(w.Alice, fault.LimitReached, "name", &ops.Lock{Name: "db", Lease: lease})
}

func lockNames(w *fixture) {
	for _, name := range []string{"/locks/database/users-table", "a//b/", "ä ?&#%2F+\n", "..", "🔒"} {
		lease, token := w.holder(w.Alice, name)
		require.Equal(w.t, []coord.LeaseID{lease}, leasesOf(w.lock(name).Holding))
		w.must(w.Alice, &ops.Unlock{Name: name, Lease: lease, Token: token})
		require.Empty(w.t, w.lock(name))
	}
}

func lockMetadata(w *fixture) {
	lease := w.lease(w.Alice)
	for _, step := range []struct{ given, kept string }{{"one", "one"}, {"", "one"}, {"two", "two"}} {
		w.must(w.Alice, &ops.Lock{Name: "db", Lease: lease, Metadata: []byte(step.given)})
		require.Equal(w.t, step.kept, string(w.lock("db").Holding[0].Metadata))
	}
}
