package audit_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/audit"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	agentv1 "github.com/blackhole/blackhole/proto/blackhole/agent/v1"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const owner = "alice"

// history is the log of an honest machine: leases 1 to 3, a lock that changes hands, a guarded write,
// a repeated command.
func history(t *testing.T) []audit.Entry {
	m := machine.New()
	var all []audit.Entry
	send := func(cmd *coordv1.Command) ops.Result {
		index := uint64(len(all) + 1)
		cmd.Owner = cmp.Or(cmd.Owner, owner)
		r, e := coordtest.Apply(m, index, 1, cmd)
		require.NoError(t, r.Err)
		e.Events, e.Grants = slices.Clone(e.Events), slices.Clone(e.Grants)
		e.Granted, e.Ended = slices.Clone(e.Granted), slices.Clone(e.Ended)
		all = append(all, audit.Entry{Index: index, Term: 1, Command: cmd, Result: r, Effects: e})
		return r
	}
	do := func(op proto.Message) ops.Result { return send(coordtest.Command("", op)) }
	for range 3 {
		do(&apiv1.LeaseGrantRequest{TtlMs: 10_000}) // 0 1 2
	}
	first := do(&apiv1.TryLockRequest{Name: "db", LeaseId: 1})    // 3
	do(&apiv1.LockRequest{TimeoutMs: -1, Name: "db", LeaseId: 2}) // 4
	do(&apiv1.LockRequest{TimeoutMs: -1, Name: "db", LeaseId: 3}) // 5
	put := []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte("a"), Lease: 2}}}, {Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte("b")}}}}
	do(&apiv1.TxnRequest{Compare: []*apiv1.Compare{coordtest.IfHolds("db", first.Lock.Token)}, Then: put}) // 6
	do(&apiv1.UnlockRequest{Name: "db", LeaseId: 1, FencingToken: int64(first.Lock.Token)})                // 7
	do(&coordv1.Expire{Term: 1, Leases: []*coordv1.LeaseRef{{Id: 2, Granted: 2}}})                         // 8
	opened := do(&apiv1.OpenClientRequest{})                                                               // 9
	once := coordtest.Once(opened.Client, 1, coordtest.Command("", &apiv1.TxnRequest{Then: put[1:]}))
	send(once)                                                                                                                                                // 10
	send(once)                                                                                                                                                // 11
	do(&apiv1.PublishInstancesRequest{LeaseId: 1, Generation: 1, Puts: []*apiv1.DirectoryEntry{entry("a", 1), entry("b", 1)}})                                // 12
	do(&apiv1.PublishInstancesRequest{LeaseId: 1, Generation: 2, Puts: []*apiv1.DirectoryEntry{entry("a", 2)}, Deletes: [][]byte{[]byte("directory/n/s/b")}}) // 13
	do(&apiv1.LeaseRevokeRequest{Id: 1})                                                                                                                      // 14
	do(&apiv1.PublishInstancesRequest{LeaseId: 3, Generation: 3, Puts: []*apiv1.DirectoryEntry{entry("a", 2)}})                                               // 15
	do(&apiv1.PublishInstancesRequest{LeaseId: 3, Generation: 3, Deletes: [][]byte{[]byte("directory/n/s/a")}})                                               // 16
	send(coordtest.Command("bob", &apiv1.LeaseGrantRequest{Id: 7, TtlMs: 10_000}))                                                                            // 17
	late := entry("a", 3)
	late.Since = 2
	send(coordtest.Command("bob", &apiv1.PublishInstancesRequest{LeaseId: 7, Generation: 1, Puts: []*apiv1.DirectoryEntry{late, entry("c", 1)}})) // 18
	late.Adopt = true
	send(coordtest.Command("bob", &apiv1.PublishInstancesRequest{LeaseId: 7, Generation: 1, Puts: []*apiv1.DirectoryEntry{late}})) // 19
	return all
}

// of returns a command of the usual owner.
func of(op proto.Message) *coordv1.Command { return coordtest.Command(owner, op) }

func entry(id string, port int32) *apiv1.DirectoryEntry {
	value, err := proto.Marshal(&agentv1.Instance{Namespace: "n", ServiceName: "s", Id: id, Port: port})
	if err != nil {
		panic(err)
	}
	return &apiv1.DirectoryEntry{Key: []byte("directory/n/s/" + id), Value: value}
}

func quota(leases, claims uint32) *coordv1.Configure {
	limits := coord.DefaultLimits()
	limits.PerOwner.Leases, limits.PerOwner.Claims = leases, claims
	return &coordv1.Configure{Limits: limits.Message()}
}

func unleased(keys uint32) *coordv1.Configure {
	o := quota(9, 9)
	o.Limits.PerOwner.UnleasedKeys = keys
	return o
}

// countForBob changes the writer of the first key without a lease.
func countForBob(h []audit.Entry) {
	for _, e := range h {
		for i, event := range e.Effects.Events {
			if event.KV != nil && event.KV.Lease == 0 {
				kv := *event.KV
				kv.Writer = "bob"
				e.Effects.Events[i].KV = &kv
				return
			}
		}
	}
}

func check(entries []audit.Entry) error {
	var l audit.Log
	for _, e := range entries {
		if err := l.Entry(e); err != nil {
			return err
		}
	}
	return nil
}

// tampered is a history with a breach of a rule.
type tampered struct {
	rule, name string
	tamper     func(h []audit.Entry)
}

// within puts the steps of the first transaction into another one, with a comparison that, by the result, holds.
func within(h []audit.Entry, c *apiv1.Compare) {
	b := &apiv1.TxnBranch{Compare: []*apiv1.Compare{c}, Then: h[6].Command.GetTxn().GetThen()}
	h[6].Command = of(&apiv1.TxnRequest{Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Txn{Txn: b}}}})
	h[6].Result.Txn.Steps = []ops.StepResult{{Succeeded: true, Steps: h[6].Result.Txn.Steps}}
}

// usesBreaches are those of transactions, of leases used, and of generations.
func usesBreaches() []tampered {
	return []tampered{
		{"L6", "a lease of another owner is used", func(h []audit.Entry) { h[3].Command.Owner = "bob" }},
		{"K1", "a transaction succeeds against its comparison", func(h []audit.Entry) {
			then := h[6].Command.GetTxn().GetThen()
			h[6].Command = of(&apiv1.TxnRequest{Compare: []*apiv1.Compare{coordtest.IfRevision("a", 1)}})
			h[6].Command.GetTxn().Then = then
		}},
		{"K1", "a transaction changes another key", func(h []audit.Entry) {
			r := h[6].Command.GetTxn()
			r.Compare, r.Then = nil, r.GetThen()[:1]
		}},
		{"K1", "a transaction puts another value", func(h []audit.Entry) {
			h[10].Command = of(&apiv1.TxnRequest{Then: []*apiv1.TxnStep{{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte("b"), Value: []byte("x")}}}}})
		}},
		{"K1", "a transaction within one succeeds against its comparison", func(h []audit.Entry) { within(h, coordtest.IfRevision("a", 1)) }},
		{"L2", "a transaction within one succeeds with the token of one who waits", func(h []audit.Entry) {
			within(h, coordtest.IfHolds("db", h[4].Result.Lock.Token))
		}},
		{"I4", "a batch is refused for a generation that is over", func(h []audit.Entry) {
			h[15].Result.Err = fault.Refused(fault.Conflict, "generation", "is over")
		}},
	}
}

// Each rule is broken once: a checker must be able to fail.
func TestLogFindsEachBreach(t *testing.T) {
	require.NoError(t, check(history(t)))
	for _, c := range slices.Concat(usesBreaches(), []tampered{
		{"L1", "a token is granted again", func(h []audit.Entry) { h[7].Effects.Grants = append(h[7].Effects.Grants, h[7].Effects.Grants[0]) }},
		{"L2", "a write with the token of one who waits", func(h []audit.Entry) {
			h[6].Command = of(&apiv1.TxnRequest{Compare: []*apiv1.Compare{coordtest.IfHolds("db", h[4].Result.Lock.Token)}})
		}},
		{"L3", "a waiter is granted beside the holder", func(h []audit.Entry) {
			h[4].Effects.Grants = []machine.Grant{{Lock: "db", Lease: 2, Token: h[4].Result.Lock.Token}}
		}},
		{"L5", "a lease ends by a write", func(h []audit.Entry) { h[6].Effects.Ended = []coord.LeaseID{3} }},
		{"L5", "a lease ends by another term's measure", func(h []audit.Entry) { h[8].Term = 2 }},
		{"L5", "a key outlives its lease", func(h []audit.Entry) { h[8].Effects.Events = h[8].Effects.Events[1:] }},
		{"L6", "another owner's claim is released", func(h []audit.Entry) { h[7].Command.Owner = "bob" }},
		{"L6", "a claim is released by a wrong token", func(h []audit.Entry) {
			h[7].Command = of(&apiv1.UnlockRequest{Name: "db", LeaseId: 1, FencingToken: 99})
		}},
		{"L6", "a claim is cancelled by a wrong lease", func(h []audit.Entry) {
			h[7].Command = of(&coordv1.Cancel{Name: "db", Lease: 3, Token: int64(h[4].Result.Lock.Token)})
		}},
		{"L7", "nobody is granted", func(h []audit.Entry) { h[7].Effects.Grants = nil }},
		{"L7", "the last in the queue is granted", func(h []audit.Entry) {
			h[7].Effects.Grants = []machine.Grant{{Lock: "db", Lease: 3, Token: h[5].Result.Lock.Token}}
		}},
		{"L7", "a grant without a claim", func(h []audit.Entry) { h[7].Effects.Grants[0].Lease = 7 }},
		{"G1", "a command after the end of the group", func(h []audit.Entry) { h[9].Command = of(&coordv1.Dissolve{}) }},
		{"U1", "a lease above the quota", func(h []audit.Entry) { h[0].Command = of(quota(1, 9)) }},
		{"U1", "a claim above the quota", func(h []audit.Entry) { h[0].Command = of(quota(9, 1)) }},
		{"U1", "a key without a lease above the quota", func(h []audit.Entry) { h[0].Command = of(unleased(0)) }},
		{"U1", "a key counts for another writer", countForBob},
		{"I1", "an entry is put by a write", func(h []audit.Entry) { h[12].Command = of(&apiv1.TxnRequest{}) }},
		{"I1", "an entry goes without its lease", func(h []audit.Entry) { h[14].Effects.Ended = nil }},
		{"I2", "an entry is left out", func(h []audit.Entry) { h[12].Effects.Events = h[12].Effects.Events[1:] }},
		{"I2", "an entry stays that was deleted", func(h []audit.Entry) { h[13].Effects.Events = h[13].Effects.Events[:1] }},
		{"I2", "an entry stays that was replaced", func(h []audit.Entry) {
			r := h[13].Command.GetPublishInstances()
			r.RangeEnd = []byte("\x00")
			r.Deletes, r.Replace, h[13].Effects.Events = nil, true, h[13].Effects.Events[:1]
		}},
		{"I2", "an event changes nothing", func(h []audit.Entry) {
			same := *h[13].Effects.Events[0].KV
			same.Value = h[13].Effects.Events[0].Prev.Value
			h[13].Effects.Events[0].KV = &same
		}},
		{"I6", "an entry is passed over for no reason", func(h []audit.Entry) { h[13].Result.Foreign = []string{"directory/n/s/a"} }},
		{"I3", "an entry of another is changed", func(h []audit.Entry) { h[13].Command.Owner = "bob" }},
		{"I6", "an entry that was adopted is passed over", func(h []audit.Entry) { h[19].Result.Foreign = []string{"directory/n/s/a"} }},
		{"I6", "an entry is put again though it was taken out since", func(h []audit.Entry) { h[18].Result.Foreign = nil }},
		{"I6", "an entry is said to be of another registration", func(h []audit.Entry) { h[18].Result.Since = []coord.Revision{0, 9} }},
		{"I4", "a batch of an older generation is accepted", func(h []audit.Entry) {
			h[13].Command.GetPublishInstances().Generation = 0
		}},
		{"E1", "a repeated command is answered otherwise", func(h []audit.Entry) { h[11].Result.Revision++ }},
		{"E1", "a repeated command has effects", func(h []audit.Entry) { h[11].Effects = h[10].Effects }},
		{"R1", "a refused command has effects", func(h []audit.Entry) { h[6].Result.Err = fault.Conflict }},
		{"R1", "a revision is left out", func(h []audit.Entry) { h[6].Result.Revision++ }},
		{"R1", "an event has another revision", func(h []audit.Entry) { h[6].Effects.Events[1].Revision++ }},
		{"R1", "events are out of order", func(h []audit.Entry) { slices.Reverse(h[6].Effects.Events) }},
		{"R1", "an event invents its past", func(h []audit.Entry) { h[6].Effects.Events[0].Prev = h[6].Effects.Events[1].KV }},
		{"R1", "an event has another key's version", func(h []audit.Entry) { h[6].Effects.Events[0].KV = h[6].Effects.Events[1].KV }},
	}) {
		t.Run(c.rule+" "+c.name, func(t *testing.T) {
			h := history(t)
			c.tamper(h)
			err := check(h)
			require.ErrorIs(t, err, fault.Internal)
			require.Equal(t, "audit."+c.rule, fault.OpOf(err), "%v", err)
		})
	}
}

func TestLeasesFindsEachBreach(t *testing.T) {
	grant := func() *audit.Leases {
		var l audit.Leases
		l.Granted(coord.Lease{ID: 1, TTL: 10_000}, time.Second)
		return &l
	}
	require.Equal(t, "audit.L4", fault.OpOf(grant().Expired(1, 10*time.Second)))
	require.NoError(t, grant().Expired(1, 11*time.Second))

	renewed := grant()
	renewed.Renewed(1, 5*time.Second)
	renewed.Renewed(2, 5*time.Second)
	require.Equal(t, "audit.L4", fault.OpOf(renewed.Expired(1, 14*time.Second)))
	led := grant()
	led.Led(8 * time.Second)
	require.Equal(t, "audit.L4", fault.OpOf(led.Expired(1, 17*time.Second)))
	require.NoError(t, led.Expired(1, 18*time.Second))
	require.Equal(t, "audit.L5", fault.OpOf(led.Expired(1, 18*time.Second)))
	revoked := grant()
	revoked.Revoked(1)
	require.Equal(t, "audit.L5", fault.OpOf(revoked.Expired(1, time.Minute)))
}

func TestStreamFindsEachBreach(t *testing.T) {
	var truth audit.Truth
	m := machine.New()
	for i := range uint64(6) {
		r, e := coordtest.Apply(m, i+1, 1, coordtest.Command("", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{
			{Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte("a")}}}, {Step: &apiv1.TxnStep_Put{Put: &apiv1.TxnPut{Key: []byte("b")}}},
		}}))
		truth.Entry(audit.Entry{Result: r, Effects: e})
	}
	w := coord.Watch{From: 2, Limit: 3, Prev: true}
	honest := func() coord.Batch { // revisions 2 and 3
		b, err := m.Events(w)
		require.NoError(t, err)
		require.Len(t, b.Events, 4)
		return b
	}
	for _, c := range []struct {
		rule, name string
		tamper     func(b *coord.Batch)
	}{
		{"", "honest", func(*coord.Batch) {}},
		{"W1", "revisions change places", func(b *coord.Batch) { slices.Reverse(b.Events) }},
		{"W2", "an event comes twice", func(b *coord.Batch) { b.Events = slices.Insert(b.Events, 1, b.Events[0]) }},
		{"W2", "an event of the batch before", func(b *coord.Batch) { b.Events[0].Revision = 1 }},
		{"W3", "a revision is left out", func(b *coord.Batch) { b.Events = b.Events[2:] }},
		{"W3", "the version before is left out", func(b *coord.Batch) { b.Events[2].Prev = nil }},
		{"W4", "a revision is cut", func(b *coord.Batch) { b.Events = b.Events[:3] }},
		{"W5", "the watch goes back", func(b *coord.Batch) { b.Next = 1 }},
		{"W6", "progress into the future", func(b *coord.Batch) { b.Next = 9 }},
		{"W6", "events beyond the progress", func(b *coord.Batch) { b.Next = 3 }},
		{"W3", "progress beyond the events", func(b *coord.Batch) { b.Next = 5 }},
	} {
		t.Run(c.rule+" "+c.name, func(t *testing.T) {
			s, b := audit.NewStream(&truth, w), honest()
			c.tamper(&b)
			err := s.Batch(b)
			if c.rule == "" {
				require.NoError(t, err)
				require.Equal(t, coord.Revision(4), s.Watch().From)
				return
			}
			require.Equal(t, "audit."+c.rule, fault.OpOf(err), "%v", err)
		})
	}
}
