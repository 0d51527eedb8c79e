package machine_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/audit"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// On random histories the machine does the same as the naive model, and shows the same at every revision.
func TestMachineMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, dumb := machine.New(), newModel()
		g := &generator{t: t, m: m}
		entries := rapid.Uint64Range(1, 150).Draw(t, "entries")
		for index := uint64(1); index <= entries; index++ {
			cmd := g.command()
			result, _ := m.Apply(index, 1, cmd)
			r := coordtest.Outcome(result)
			kind, refused, answer := dumb.apply(index, cmd)
			if refused {
				require.ErrorIs(t, r.Err, kind, "%T: the model refuses", cmd.GetRequest())
			} else {
				require.NoError(t, r.Err, "%T", cmd.GetRequest())
				require.Equal(t, answer, r.Lock)
				require.Equal(t, dumb.foreign, r.Foreign)
				require.Equal(t, dumb.kept, r.Since)
				requireTxn(t, dumb, r.Txn)
			}
			require.Equal(t, dumb.now, m.Revision())
		}
		requireSame(t, dumb, m)
	})
}

// The same on histories of two owners that put and delete a few entries, lose their leases and return.
func TestDirectoryMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, dumb := machine.New(), newModel()
		g := &generator{t: t, m: m}
		var promises audit.Log
		entries := rapid.Uint64Range(1, 80).Draw(t, "entries")
		for index := uint64(1); index <= entries; index++ {
			cmd := g.published()
			result, e := m.Apply(index, 1, cmd)
			r := coordtest.Outcome(result)
			require.NoError(t, promises.Entry(audit.Entry{Index: index, Term: 1, Command: cmd, Result: r, Effects: e}))
			kind, refused, _ := dumb.apply(index, cmd)
			if refused {
				require.ErrorIs(t, r.Err, kind)
				continue
			}
			require.NoError(t, r.Err)
			require.Equal(t, dumb.foreign, r.Foreign)
			require.Equal(t, dumb.kept, r.Since)
			requireWords(t, dumb, m)
		}
		requireSame(t, dumb, m)
	})
}

// requireTxn compares the results of a transaction. Large ones are not kept for a repetition.
func requireTxn(t *rapid.T, dumb *model, r ops.TxnResult) {
	switch {
	case dumb.text == "": // also the repeated result of another command
		require.Equal(t, ops.TxnResult{}, r)
	case r.Forgotten:
		require.Equal(t, counts(dumb.text), counts(showTxn(r)))
	default:
		require.Equal(t, dumb.text, showTxn(r))
	}
}

func requireSame(t *rapid.T, dumb *model, m *machine.Machine) {
	require.Equal(t, dumb.names(), m.LockNames(""))
	for _, name := range dumb.names() {
		queue, held := dumb.queue(dumb.keys(), name)
		info, _ := m.Lock(name)
		require.Len(t, info.Holding, held)
		require.Len(t, info.Waiting, len(queue)-held)
		for i, kv := range append(info.Holding, info.Waiting...) {
			require.Equal(t, queue[i].lease, kv.Lease)
		}
	}
	leases := []coord.Lease{}
	for _, l := range dumb.leases {
		leases = append(leases, l)
	}
	slices.SortFunc(leases, func(a, b coord.Lease) int { return cmp.Compare(a.ID, b.ID) })
	require.Equal(t, leases, m.Leases())
	require.Equal(t, len(dumb.clients), m.Clients())
	requireUsage(t, dumb, m)
	requirePublications(t, dumb, m)
	requireWords(t, dumb, m)
	again, err := machine.Restore(m.Snapshot())
	require.NoError(t, err)
	requireUsage(t, dumb, again)
	requirePublications(t, dumb, again)
	requireWords(t, dumb, again)
	for revision, state := range dumb.states {
		if revision >= m.Compacted() {
			requireState(t, state, m, revision)
		}
		if revision > max(m.Compacted(), coord.FirstRevision) {
			requireEvents(t, dumb.states[revision-1], state, m, revision)
		}
	}
}

// requireState reads one revision, in pages, in any order.
func requireState(t *rapid.T, state map[string]version, m *machine.Machine, at coord.Revision) {
	seen := map[string]version{}
	order := rapid.Custom(func(t *rapid.T) apiv1.TxnRange_Order {
		return apiv1.TxnRange_Order(rapid.Uint8Range(0, 4).Draw(t, "by"))
	})
	q := machine.Query{At: at, Limit: 2, Order: order.Draw(t, "order"), Descending: rapid.Bool().Draw(t, "descending")}
	for {
		page, err := m.Range(q)
		require.NoError(t, err)
		for _, kv := range page.Keys {
			require.Contains(t, state, kv.Key)
			require.NotContains(t, seen, kv.Key)
			v := state[kv.Key]
			require.Equal(t, []any{v.create, v.mod, v.version, v.lease}, []any{kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease})
			claim, ok := kv.Claim()
			require.Equal(t, v.lock != "", ok)
			if ok {
				require.Equal(t, []any{v.lock, v.holder, v.count, v.metadata}, []any{claim.Lock, claim.Holder, claim.Count, string(claim.Metadata)})
			} else {
				require.Equal(t, v.value, string(kv.Value))
			}
			seen[kv.Key] = v
		}
		if q.From = page.Next; page.Next == "" {
			break
		}
	}
	require.Equal(t, state, seen)
}

// requireEvents compares the events of a revision with the difference of two states.
func requireEvents(t *rapid.T, before, after map[string]version, m *machine.Machine, at coord.Revision) {
	changed := map[string]bool{}
	for key, v := range after {
		if before[key] != v {
			changed[key] = true
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			changed[key] = true
		}
	}
	batch, err := m.Events(coord.Watch{From: at, Prev: true, Limit: 1})
	require.NoError(t, err)
	require.Len(t, batch.Events, len(changed))
	require.Equal(t, at+1, batch.Next)
	for _, e := range batch.Events {
		require.True(t, changed[e.Key])
		_, was := before[e.Key]
		_, is := after[e.Key]
		require.Equal(t, []bool{was, is}, []bool{e.Prev != nil, e.KV != nil})
		require.Equal(t, is && after[e.Key].create == after[e.Key].mod, e.Creates()) // also a claim in the place of a plain key
	}
}

// Two machines, one restored at every index and fed with decoded commands, agree and break no promise.
func TestReplicasAgreeAndKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, two := machine.New(), machine.New()
		g := &generator{t: t, m: one, wild: rapid.Bool().Draw(t, "wild")}
		var promises audit.Log
		var truth audit.Truth
		streams := []*audit.Stream{
			audit.NewStream(&truth, coord.Watch{From: 1, Prev: true, Limit: 3}),
			audit.NewStream(&truth, coord.Watch{From: 1, Span: coord.Under("l/"), Limit: 1}),
			audit.NewStream(&truth, coord.Watch{From: 20, Span: coord.Exactly("a")}),
		}
		entries := rapid.Uint64Range(1, 100).Draw(t, "entries")
		for index := uint64(1); index <= entries; index++ {
			cmd := g.command()
			encoded, err := encode(cmd)
			require.NoError(t, err)
			decoded, err := decode(encoded)
			require.NoError(t, err)

			result, e := one.Apply(index, 1, cmd)
			r := coordtest.Outcome(result)
			require.NoError(t, promises.Entry(audit.Entry{Index: index, Term: 1, Command: cmd, Result: r, Effects: e}))
			truth.Entry(audit.Entry{Result: r, Effects: e})

			again, same := two.Apply(index, 1, decoded)
			requireSameEffects(t, r, e, coordtest.Outcome(again), same)
			require.Equal(t, one.StateHash(), two.StateHash())
			two, err = machine.Restore(two.Snapshot())
			require.NoError(t, err)
			require.Equal(t, one.Snapshot(), two.Snapshot())
			i := rapid.IntRange(0, len(streams)-1).Draw(t, "stream")
			from := one
			if g.one(2) {
				from = two
			}
			streams[i] = follow(t, from, &truth, streams[i])
		}
	})
}

func requireSameEffects(t *rapid.T, r ops.Result, e machine.ApplyEffects, again ops.Result, same machine.ApplyEffects) {
	require.Equal(t, r, again)
	require.Equal(t, len(e.Events), len(same.Events))
	for i := range e.Events {
		require.Equal(t, e.Events[i].Key, same.Events[i].Key)
	}
	require.Equal(t, append([]machine.Grant{}, e.Grants...), append([]machine.Grant{}, same.Grants...))
}

// follow reads one batch, and restarts after a compaction.
func follow(t *rapid.T, m *machine.Machine, truth *audit.Truth, s *audit.Stream) *audit.Stream {
	batch, err := m.Events(s.Watch())
	if fault.KindOf(err) == fault.NotFound {
		require.LessOrEqual(t, s.Watch().From, m.Compacted())
		w := s.Watch()
		w.From = m.Revision() + 1
		return audit.NewStream(truth, w)
	}
	require.NoError(t, err)
	require.NoError(t, s.Batch(batch))
	return s
}
