package coordtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// patient bounds a test's wait, in real time.
const patient = time.Minute

// fixture is a group under test.
type fixture struct {
	API
	t     *testing.T
	calls sync.WaitGroup
}

func newWorld(t *testing.T, api API) *fixture {
	if api.TTL == 0 {
		api.TTL = 10 * time.Second
	}
	w := &fixture{API: api, t: t}
	t.Cleanup(w.calls.Wait) // the test's context has ended
	return w
}

func (w *fixture) ctx() context.Context { return w.t.Context() }

// try executes a command.
func (w *fixture) try(o Owner, op ops.Op) (ops.Result, error) {
	result, header, err := o.Do(w.ctx(), ops.Command{Owner: o.Name, Op: op})
	if err == nil {
		w.headed(header)
	}
	return result, err
}

// must executes a command and requires success.
func (w *fixture) must(o Owner, op ops.Op) ops.Result {
	w.t.Helper()
	result, err := w.try(o, op)
	require.NoError(w.t, err)
	return result
}

// refused holds an error to its kind and field.
func (w *fixture) refused(kind fault.Kind, field string, err error) {
	w.t.Helper()
	require.ErrorIs(w.t, err, kind)
	require.Equal(w.t, field, fault.FieldOf(err), "%v", err)
	require.NotEmpty(w.t, fault.Message(err))
}

// mustNot executes a command and requires its refusal.
func (w *fixture) mustNot(o Owner, kind fault.Kind, field string, op ops.Op) {
	w.t.Helper()
	_, err := w.try(o, op)
	w.refused(kind, field, err)
}

// headed checks the fields of every header.
func (w *fixture) headed(h coord.Header) {
	w.t.Helper()
	require.NotZero(w.t, h.Group)
	require.NotZero(w.t, h.Member)
	require.NotZero(w.t, h.Term)
}

// lease grants a lease that ends without renewal within TTL.
func (w *fixture) lease(o Owner) coord.LeaseID {
	w.t.Helper()
	return w.must(o, &ops.LeaseGrant{TTL: w.TTL.Milliseconds()}).Lease
}

// holder takes a free lock and returns its lease and token.
func (w *fixture) holder(o Owner, name string) (coord.LeaseID, coord.Token) {
	w.t.Helper()
	lease := w.lease(o)
	r := w.must(o, &ops.Lock{Name: name, Lease: lease})
	require.True(w.t, r.Lock.Granted)
	require.Positive(w.t, r.Lock.Token)
	return lease, r.Lock.Token
}

// keep renews leases and requires all to live.
func (w *fixture) keep(o Owner, ids ...coord.LeaseID) {
	w.t.Helper()
	renewals, header, err := o.KeepAlive(w.ctx(), o.Name, ids)
	require.NoError(w.t, err)
	w.headed(header)
	require.Len(w.t, renewals, len(ids))
	for i, r := range renewals {
		require.Equal(w.t, ops.Renewal{ID: ids[i], TTL: w.TTL.Milliseconds()}, r)
	}
}

// claim is one running Acquire.
type claim struct {
	w      *fixture
	done   chan struct{}
	result ops.Result
	err    error
}

// acquire begins to wait for a lock.
func (w *fixture) acquire(ctx context.Context, o Owner, cmd ops.Command, wait time.Duration) *claim {
	c := &claim{w: w, done: make(chan struct{})}
	cmd.Owner = o.Name
	w.calls.Go(func() {
		defer close(c.done)
		c.result, _, c.err = o.Acquire(ctx, cmd, wait)
	})
	return c
}

// queued begins to wait for an exclusive lock, and returns when n wait.
func (w *fixture) queued(o Owner, name string, lease coord.LeaseID, n int) *claim {
	w.t.Helper()
	c := w.acquire(w.ctx(), o, locking(name, lease), coord.NoLimit)
	w.waiting(name, n)
	return c
}

func locking(name string, lease coord.LeaseID) ops.Command {
	return ops.Command{Op: &ops.Lock{Name: name, Lease: lease, Wait: true}}
}

// end waits for the end of a call.
func (c *claim) end() (ops.Result, error) {
	c.w.t.Helper()
	ctx, cancel := context.WithTimeout(c.w.ctx(), patient)
	defer cancel()
	select {
	case <-c.done:
	case <-ctx.Done():
		require.FailNow(c.w.t, "Acquire hangs")
	}
	return c.result, c.err
}

// granted waits for the grant of a lock.
func (c *claim) granted() ops.LockResult {
	c.w.t.Helper()
	r, err := c.end()
	require.NoError(c.w.t, err)
	require.True(c.w.t, r.Lock.Granted)
	return r.Lock
}

// pending holds a call to go on.
func (c *claim) pending() {
	c.w.t.Helper()
	select {
	case <-c.done:
		require.FailNow(c.w.t, "Acquire ended", "%+v %v", c.result, c.err)
	default:
	}
}

// lock returns a lock's state, or a zero one without claims.
func (w *fixture) lock(name string) ops.LockState {
	w.t.Helper()
	states, header, err := w.Locks(w.ctx(), ops.LockQuery{Name: name})
	if fault.KindOf(err) == fault.NotFound {
		return ops.LockState{}
	}
	require.NoError(w.t, err)
	w.headed(header)
	require.Len(w.t, states, 1)
	require.Equal(w.t, name, states[0].Name)
	return states[0]
}

// waiting waits until n claims wait for a lock.
func (w *fixture) waiting(name string, n int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return len(w.lock(name).Waiting) == n }, patient, time.Millisecond)
}

func leasesOf(claims []ops.ClaimState) []coord.LeaseID {
	ids := make([]coord.LeaseID, len(claims))
	for i, c := range claims {
		ids[i] = c.Lease
	}
	return ids
}

func put(key, value string) ops.Step { return bound(key, value, 0) }

func bound(key, value string, lease coord.LeaseID) ops.Step {
	return ops.Step{Put: &ops.Put{Key: key, Value: []byte(value), Lease: lease}}
}

func del(span coord.Span) ops.Step { return ops.Step{Delete: &span} }

func write(changes ...ops.Step) *ops.Txn { return &ops.Txn{Then: changes} }

// unmet executes a transaction with a comparison that does not hold, by its position.
func (w *fixture) unmet(o Owner, position int, op *ops.Txn) ops.Result {
	w.t.Helper()
	r := w.must(o, op)
	require.False(w.t, r.Txn.Succeeded)
	require.Equal(w.t, position, r.Txn.Failed, "%s", r.Txn.Reason)
	require.ErrorIs(w.t, r.Txn.Unmet(), fault.Conflict)
	return r
}

// revision returns the present revision.
func (w *fixture) revision() coord.Revision {
	w.t.Helper()
	page, _, err := w.Range(w.ctx(), ops.Query{Span: coord.Exactly("no such key")}, ops.Linearizable)
	require.NoError(w.t, err)
	return page.Revision
}

// version is the part of a KeyValue that crosses a wire.
type version struct {
	Key, Value  string
	Create, Mod coord.Revision
	Version     int64
	Lease       coord.LeaseID
}

func shown(kv *coord.KeyValue) version {
	if kv == nil {
		return version{}
	}
	return version{kv.Key, string(kv.Value), kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease}
}

func keysOf(kvs []*coord.KeyValue) []string {
	keys := make([]string, len(kvs))
	for i, kv := range kvs {
		keys[i] = kv.Key
	}
	return keys
}
