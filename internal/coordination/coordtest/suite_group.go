package coordtest

import (
	"context"
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// retries tests clients with exactly-once commands.
func retries() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"a retry is applied once":         retryOnce,
		"a retry of a refusal is refused": retryRefusal,
		"a retry of Acquire":              retryAcquire,
		"a retry of Acquire that waits":   retryWaiting,
		"a retry of Acquire given back":   retryGivenBack,
		"what is done is done":            retryOld,
		"clients are known":               retryUnknown,
	}
}

func (w *fixture) client(o Owner) coord.ClientID {
	w.t.Helper()
	id := w.must(o, &ops.ClientOpen{}).Client
	require.NotZero(w.t, id)
	return id
}

// once executes a command of a client.
func (w *fixture) once(o Owner, c coord.ClientID, sequence uint64, op ops.Op) (ops.Result, error) {
	r, _, err := o.Do(w.ctx(), ops.Command{Owner: o.Name, Client: c, Sequence: sequence, Op: op})
	return r, err
}

func retryOnce(w *fixture) {
	client, lease := w.client(w.Alice), coord.LeaseID(0)
	sequence := uint64(0)
	twice := func(op ops.Op) ops.Result {
		w.t.Helper()
		sequence += 3 // gaps are fine
		first, err := w.once(w.Alice, client, sequence, op)
		require.NoError(w.t, err)
		again, err := w.once(w.Alice, client, sequence, op)
		require.NoError(w.t, err)
		require.Equal(w.t, first.Lock, again.Lock)
		require.Equal(w.t, []any{first.Lease, first.TTL, first.Changed}, []any{again.Lease, again.TTL, again.Changed})
		return first
	}
	lease = twice(&ops.LeaseGrant{TTL: 30_000}).Lease
	token := twice(&ops.Lock{Name: "db", Lease: lease}).Lock.Token
	require.Equal(w.t, uint32(1), w.lock("db").Holding[0].Count)
	require.Equal(w.t, 1, twice(write(put("a", ""))).Changed)
	require.Equal(w.t, coord.Revision(3), w.revision())
	twice(&ops.Unlock{Name: "db", Lease: lease, Token: token})
	twice(&ops.LeaseRevoke{ID: lease})
	states, _, err := w.Leases(w.ctx(), ops.LeaseQuery{})
	require.NoError(w.t, err)
	require.Empty(w.t, states)
}

func retryRefusal(w *fixture) {
	client := w.client(w.Alice)
	create := &ops.Txn{If: []ops.Compare{ops.IfRevision("a", 2)}, Then: []ops.Step{put("b", "")}}
	for range 2 {
		r, err := w.once(w.Alice, client, 1, create)
		require.NoError(w.t, err)
		require.Equal(w.t, 1, r.Txn.Failed)
		w.must(w.Alice, write(put("a", ""))) // the command would be applied now
	}
}

func retryAcquire(w *fixture) {
	client, lease := w.client(w.Alice), w.lease(w.Alice)
	cmd := locking("db", lease)
	cmd.Client, cmd.Sequence = client, 1
	first := w.acquire(w.ctx(), w.Alice, cmd, coord.NoLimit).granted()
	again := w.acquire(w.ctx(), w.Alice, cmd, coord.NoLimit).granted()
	require.Equal(w.t, []any{first.Token, uint32(1)}, []any{again.Token, again.Count})
}

// A retry takes up the wait where the first attempt left it.
func retryWaiting(w *fixture) {
	lease, token := w.holder(w.Alice, "db")
	client, second := w.client(w.Bob), w.lease(w.Bob)
	cmd := locking("db", second)
	cmd.Client, cmd.Sequence = client, 1
	one := w.acquire(w.ctx(), w.Bob, cmd, coord.NoLimit)
	w.waiting("db", 1)
	two := w.acquire(w.ctx(), w.Bob, cmd, coord.NoLimit)
	w.must(w.Alice, &ops.Unlock{Name: "db", Lease: lease, Token: token})
	require.Equal(w.t, one.granted().Token, two.granted().Token)
	require.Equal(w.t, uint32(1), w.lock("db").Holding[0].Count)
	require.Equal(w.t, one.granted().Token, w.acquire(w.ctx(), w.Bob, cmd, coord.NoLimit).granted().Token)
}

// A retry of a lost claim fails: the caller must claim anew.
func retryGivenBack(w *fixture) {
	w.holder(w.Alice, "db")
	cmd := locking("db", w.lease(w.Bob))
	cmd.Client, cmd.Sequence = w.client(w.Bob), 1
	ctx, cancel := context.WithCancel(w.ctx())
	one := w.acquire(ctx, w.Bob, cmd, coord.NoLimit)
	w.waiting("db", 1)
	cancel()
	_, err := one.end()
	require.ErrorIs(w.t, err, fault.Canceled)
	w.waiting("db", 0)
	_, err = w.acquire(w.ctx(), w.Bob, cmd, coord.NoLimit).end()
	w.refused(fault.NotFound, "token", err)
	cmd.Sequence++
	w.acquire(w.ctx(), w.Bob, cmd, coord.NoLimit)
	w.waiting("db", 1)
}

func retryOld(w *fixture) {
	client := w.client(w.Alice)
	for _, sequence := range []uint64{1, 5} {
		_, err := w.once(w.Alice, client, sequence, write(put("a", "")))
		require.NoError(w.t, err)
	}
	_, err := w.once(w.Alice, client, 4, write(put("a", "")))
	w.refused(fault.Conflict, "sequence", err)
	_, err = w.once(w.Alice, client, 0, write(put("a", "")))
	w.refused(fault.Invalid, "sequence", err)
}

func retryUnknown(w *fixture) {
	client := w.client(w.Alice)
	_, err := w.once(w.Bob, client, 1, write(put("a", "")))
	require.NoError(w.t, err, "the random id is the credential: a client works through any peer")
	_, err = w.once(w.Bob, 1<<40, 1, write(put("a", "")))
	w.refused(fault.NotFound, "client", err)
	_, err = w.once(w.Alice, client, 2, &ops.ClientClose{})
	require.NoError(w.t, err)
	_, err = w.once(w.Alice, client, 3, write(put("a", "")))
	w.refused(fault.NotFound, "client", err)
	_, err = w.once(w.Alice, 0, 0, &ops.ClientClose{})
	w.refused(fault.Invalid, "client", err)
	require.Equal(w.t, coord.FirstRevision+1, w.revision())
}

// group are the promises about the group itself.
func group() map[string]func(*fixture) {
	return map[string]func(*fixture){
		"group as it stands":    groupStands,
		"headers":               groupHeaders,
		"orders refuse":         groupOrders,
		"without what it needs": groupHalted,
	}
}

func (w *fixture) group() coord.GroupState {
	w.t.Helper()
	state, err := w.Group(w.ctx())
	require.NoError(w.t, err)
	return state
}

func groupStands(w *fixture) {
	w.holder(w.Alice, "db")
	w.must(w.Alice, write(put("a", "")))
	state := w.group()
	require.Equal(w.t, []any{1, 1, 2, coord.Revision(3)}, []any{state.Leases, state.Locks, state.Keys, state.Revision})
	require.Contains(w.t, []string{"member", "client"}, state.Phase)
	require.Empty(w.t, state.Missing)
	require.NotZero(w.t, state.Term)
	require.NotEmpty(w.t, state.Leader)
	require.NotEmpty(w.t, state.Voters)
	leads := false
	for _, m := range state.Voters {
		require.NotZero(w.t, m.ID)
		leads = leads || m.Peer == state.Leader && m.Active && m.Applied > 0
	}
	require.True(w.t, leads, "%+v", state)
}

func groupHeaders(w *fixture) {
	_, one, err := w.Alice.Do(w.ctx(), ops.Command{Owner: w.Alice.Name, Op: write(put("a", ""))})
	require.NoError(w.t, err)
	_, two, err := w.Range(w.ctx(), ops.Query{}, ops.Linearizable)
	require.NoError(w.t, err)
	require.Equal(w.t, []any{coord.Revision(2), coord.Revision(2)}, []any{one.Revision, two.Revision})
	require.Equal(w.t, one.Group, two.Group)
	state := w.group()
	require.True(w.t, strings.HasPrefix(state.ID, fmt.Sprintf("%016x", one.Group)), "%s %x", state.ID, one.Group)
	require.GreaterOrEqual(w.t, state.Term, one.Term)
}

func groupOrders(w *fixture) {
	for _, c := range []struct {
		action coord.MemberAction
		kind   fault.Kind
		field  string
	}{
		{"", fault.Invalid, "action"},
		{"dissolve", fault.Invalid, "action"},
		{coord.AddMember, fault.NotFound, "peer_id"},
		{coord.RemoveMember, fault.NotFound, "peer_id"},
		{coord.PromoteMember, fault.NotFound, "peer_id"},
		{coord.ReplaceMember, fault.NotFound, "peer_id"},
		{coord.TransferLeadership, fault.NotFound, "peer_id"},
	} {
		var err error
		for range 20 { // a new leader needs a moment to know its members
			if _, err = w.ChangeMembers(w.ctx(), coord.MemberChange{Action: c.action, Peer: "nobody"}); fault.KindOf(err) != fault.Unavailable {
				break
			}
			w.Pass(w.TTL / 10)
		}
		if w.group().Phase == "client" {
			require.ErrorIs(w.t, err, fault.Forbidden)
			continue
		}
		w.refused(c.kind, c.field, err)
	}
	w.mustNot(w.Alice, fault.Conflict, "then[0].key", write(put(coord.MembersPrefix+"x", "wanted")))
}

// A group in an outage says so, and forgets nothing.
func groupHalted(w *fixture) {
	if w.Halt == nil {
		w.t.Skip("cannot be had here")
	}
	lease, token := w.holder(w.Alice, "db")
	waiting := w.queued(w.Bob, "db", w.lease(w.Bob), 1)
	resume := w.Halt()
	_, err := waiting.end()
	require.ErrorIs(w.t, err, fault.Unavailable)
	_, err = w.try(w.Alice, write(put("a", "")))
	require.ErrorIs(w.t, err, fault.Unavailable)
	_, _, err = w.Alice.KeepAlive(w.ctx(), w.Alice.Name, []coord.LeaseID{lease})
	require.ErrorIs(w.t, err, fault.Unavailable)
	_, err = w.acquire(w.ctx(), w.Alice, locking("db", lease), coord.NoLimit).end()
	require.ErrorIs(w.t, err, fault.Unavailable)
	_, _, err = w.Range(w.ctx(), ops.Query{}, ops.Linearizable)
	require.ErrorIs(w.t, err, fault.Unavailable)
	_, _, err = w.Locks(w.ctx(), ops.LockQuery{Name: "db"})
	require.ErrorIs(w.t, err, fault.Unavailable)
	require.NotEmpty(w.t, w.group().Missing)
	w.Pass(2 * w.TTL)
	resume()
	require.Empty(w.t, w.group().Missing)
	w.Pass(w.TTL / 2)
	w.keep(w.Alice, lease)
	require.Equal(w.t, token, w.lock("db").Holding[0].Token)
}
