package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// alice owns everything without a special owner.
const alice, bob = "alice", "bob"

// log feeds a machine with commands at consecutive indexes of term 1.
type log struct {
	*machine.Machine
	next uint64
}

func newLog() *log { return &log{Machine: machine.New()} }

func (l *log) send(cmd *coordv1.Command) (ops.Result, machine.ApplyEffects) {
	l.next++
	return coordtest.Apply(l.Machine, l.next, 1, cmd)
}

// apply is send for benchmarks: it makes nothing beside the machine.
func (l *log) apply(cmd *coordv1.Command) (machine.Result, machine.ApplyEffects) {
	l.next++
	return l.Apply(l.next, 1, cmd)
}

func (l *log) do(owner string, op proto.Message) (ops.Result, machine.ApplyEffects) {
	return l.send(coordtest.Command(owner, op))
}

// must applies alice's command and requires success.
func (l *log) must(t testing.TB, op proto.Message) (ops.Result, machine.ApplyEffects) {
	t.Helper()
	r, e := l.do(alice, op)
	require.NoError(t, r.Err)
	return r, e
}

// refused applies alice's command, which has to fail with a kind and change no state.
func (l *log) refused(t testing.TB, kind fault.Kind, field string, op proto.Message) {
	t.Helper()
	l.refusedTo(t, alice, op, kind, field)
}

func (l *log) refusedTo(t testing.TB, owner string, op proto.Message, kind fault.Kind, field string) {
	t.Helper()
	before, revision := contents(l.Machine), l.Revision()
	r, e := l.do(owner, op)
	require.ErrorIs(t, r.Err, kind)
	require.Equal(t, field, fault.FieldOf(r.Err), "%v", r.Err)
	require.Empty(t, e.Events)
	require.Equal(t, revision, l.Revision())
	require.Equal(t, before, contents(l.Machine))
}

// contents returns everything visible to readers.
func contents(m *machine.Machine) any {
	page, _ := m.Range(machine.Query{})
	batch, _ := m.Events(coord.Watch{From: m.Compacted() + 1, Prev: true, Limit: 1 << 30})
	locks := make([]machine.LockInfo, 0)
	for _, name := range m.LockNames("") {
		info, _ := m.Lock(name)
		locks = append(locks, info)
	}
	return []any{page, batch, locks, m.Leases(), m.Limits(), m.Clients()}
}

func (l *log) lease(t testing.TB, owner string) coord.LeaseID {
	t.Helper()
	r, _ := l.do(owner, &apiv1.LeaseGrantRequest{TtlMs: 10_000})
	require.NoError(t, r.Err)
	return r.Lease
}

// leases grants n leases to alice.
func (l *log) leases(t testing.TB, n int) []coord.LeaseID {
	t.Helper()
	ids := make([]coord.LeaseID, n)
	for i := range ids {
		ids[i] = l.lease(t, alice)
	}
	return ids
}

func (l *log) ref(id coord.LeaseID) *coordv1.LeaseRef {
	lease, _ := l.Lease(id)
	return &coordv1.LeaseRef{Id: int64(id), Granted: lease.Granted}
}

func put(key, value string, lease coord.LeaseID) *apiv1.TxnStep {
	return coordtest.Put(key, value, lease)
}

func del(span coord.Span) *apiv1.TxnStep { return coordtest.Delete(span) }

func write(changes ...*apiv1.TxnStep) *apiv1.TxnRequest { return &apiv1.TxnRequest{Then: changes} }

func lock(name string, lease coord.LeaseID) *apiv1.LockRequest {
	return &apiv1.LockRequest{TimeoutMs: -1, Name: name, LeaseId: int64(lease)}
}

func try(name string, lease coord.LeaseID) *apiv1.TryLockRequest {
	return &apiv1.TryLockRequest{Name: name, LeaseId: int64(lease)}
}

func unlock(name string, lease coord.LeaseID, token coord.Token) *apiv1.UnlockRequest {
	return &apiv1.UnlockRequest{Name: name, LeaseId: int64(lease), FencingToken: int64(token)}
}

func holders(m *machine.Machine, name string) (holding, waiting []coord.LeaseID) {
	info, _ := m.Lock(name)
	for _, kv := range info.Holding {
		holding = append(holding, kv.Lease)
	}
	for _, kv := range info.Waiting {
		waiting = append(waiting, kv.Lease)
	}
	return holding, waiting
}

// encode and decode are those of this program, in a group of the first level.
func encode(cmd *coordv1.Command) ([]byte, error) {
	b, _, err := machine.Current().Encode(cmd, 0)
	return b, err
}

func decode(b []byte) (*coordv1.Command, error) { return machine.Current().Decode(b, coord.FirstLevel) }
