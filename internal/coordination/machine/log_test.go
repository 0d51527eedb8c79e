package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
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

func (l *log) send(cmd coord.Command) (coord.Result, machine.ApplyEffects) {
	m, err := coord.Message(cmd)
	if err != nil { // no log gets it
		return coord.Result{Revision: l.Revision(), Err: err}, machine.ApplyEffects{}
	}
	l.next++
	return l.Apply(l.next, 1, m)
}

func (l *log) do(owner string, op coord.Op) (coord.Result, machine.ApplyEffects) {
	return l.send(coord.Command{Owner: owner, Op: op})
}

// must applies alice's command and requires success.
func (l *log) must(t testing.TB, op coord.Op) (coord.Result, machine.ApplyEffects) {
	t.Helper()
	r, e := l.do(alice, op)
	require.NoError(t, r.Err)
	return r, e
}

// refused applies alice's command, which has to fail with a kind and change no state.
func (l *log) refused(t testing.TB, kind fault.Kind, field string, op coord.Op) {
	t.Helper()
	l.refusedTo(t, alice, op, kind, field)
}

func (l *log) refusedTo(t testing.TB, owner string, op coord.Op, kind fault.Kind, field string) {
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
	page, _ := m.Range(coord.Query{})
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
	r, _ := l.do(owner, &coord.LeaseGrant{TTL: 10_000})
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

func (l *log) ref(id coord.LeaseID) coord.LeaseRef {
	lease, _ := l.Lease(id)
	return coord.LeaseRef{ID: id, Granted: lease.Granted}
}

func put(key, value string, lease coord.LeaseID) coord.Step {
	return coord.Step{Put: &coord.Put{Key: key, Value: []byte(value), Lease: lease}}
}

func del(span coord.Span) coord.Step { return coord.Step{Delete: &span} }

func write(changes ...coord.Step) *coord.Txn { return &coord.Txn{Then: changes} }

func lock(name string, lease coord.LeaseID) *coord.Lock {
	return &coord.Lock{Name: name, Lease: lease, Wait: true}
}

func try(name string, lease coord.LeaseID) *coord.Lock {
	return &coord.Lock{Name: name, Lease: lease}
}

func unlock(name string, lease coord.LeaseID, token coord.Token) *coord.Unlock {
	return &coord.Unlock{Name: name, Lease: lease, Token: token}
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

// message returns a command as the log has it.
func message(cmd coord.Command) *coordv1.Command {
	m, err := coord.Message(cmd)
	if err != nil {
		panic(err)
	}
	return m
}

// encode and decode are those of this program, in a group of the first level.
func encode(cmd coord.Command) ([]byte, error) {
	m, err := coord.Message(cmd)
	if err != nil {
		return nil, err
	}
	b, _, err := machine.Current().Encode(m, 0)
	return b, err
}

func decode(b []byte) (*coordv1.Command, error) { return machine.Current().Decode(b, coord.FirstLevel) }
