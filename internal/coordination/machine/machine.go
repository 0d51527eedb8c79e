package machine

import (
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Machine is the replicated state, for one goroutine at a time. Reads may overlap each other, but not
// Apply or the methods that copy: View and Image. The copies are independent.
type Machine struct {
	Keyspace

	limits      limits
	index       uint64 // of the last entry applied
	term        uint64 // its term
	incarnation uint64
	level       uint32   // feature level of the group
	addresses   [][]byte // multiaddrs of the members; replaced as a whole

	leases  leases
	locks   locks
	clients clients
	// owners derive from leases, their keys, and clients.
	owners   owners
	removals removals
	merging  merging

	call    call         // of the current entry
	effects ApplyEffects // the same; the slices are reused
}

// New returns the state before the first entry, under DefaultLimits.
func New() *Machine {
	return &Machine{
		Keyspace: Keyspace{revision: coord.FirstRevision},
		level:    coord.FirstLevel,
		limits:   limits{coord.DefaultLimits()},
		locks:    make(locks),
		clients:  clients{byID: make(map[coord.ClientID]*client)},
		owners:   newOwners(),
	}
}

// Apply executes the command of a log entry. Entries come in ascending order; entries without a
// command may be left out.
//
// A refused command changes only the index, and the result explains the refusal. Apply also refuses
// an entry at or below the last index, and a command without a known request. Values in a command are kept: its owner must not
// change them afterwards.
func (m *Machine) Apply(index, term uint64, cmd *coordv1.Command) (Result, ApplyEffects) {
	m.effects = ApplyEffects{
		Events: m.effects.Events[:0], Grants: m.effects.Grants[:0],
		Granted: m.effects.Granted[:0], Ended: m.effects.Ended[:0],
	}
	if index <= m.index {
		return m.refused(fault.Refused(fault.Internal, "index", "%d is applied already, the last is %d", index, m.index)), m.effects
	}
	m.index, m.term = index, term
	attempt := cmd.GetAttempt()
	if attempt.GetClient() == 0 {
		return m.execute(cmd), m.effects
	}
	c, err := m.clients.of(attempt)
	if err != nil {
		return m.refused(err), m.effects
	}
	m.clients.saw(c, index, &m.owners)
	if c.sequence == attempt.GetSequence() {
		return c.repeat(), m.effects
	}
	result := m.execute(cmd)
	c.keep(attempt.GetSequence(), result) // without effect on a closed client
	return result, m.effects
}

// execute runs a request and publishes its events.
func (m *Machine) execute(cmd *coordv1.Command) Result {
	made := &struct {
		answer coordv1.Result
		header apiv1.Header
	}{}
	m.call = call{
		index: m.index, term: m.term, owner: cmd.GetOwner(), random: cmd.GetRandom(), client: coord.ClientID(cmd.GetAttempt().GetClient()),
		answer: &made.answer, header: &made.header,
	}
	if err := m.call.run(m, cmd); err != nil {
		return m.refused(err)
	}
	m.publish()
	made.header.Revision = int64(m.revision)
	return Result{Revision: m.revision, Answer: &made.answer, header: &made.header}
}

// refused returns the result of a refused command.
func (s *Keyspace) refused(err error) Result {
	return Result{Revision: s.revision, Err: refusal(fault.KindOf(err), fault.FieldOf(err), fault.Message(err))}
}

// Index gives the index and the term of the last entry applied.
func (m *Machine) Index() (index, term uint64) { return m.index, m.term }

// Incarnation counts the times that the group was restored after a disaster.
func (m *Machine) Incarnation() uint64 { return m.incarnation }

// Level gives the feature level of the group.
func (m *Machine) Level() uint32 { return m.level }

// Addresses gives the multiaddrs of the members as the leader recorded them last, each with its peer id. They must
// not be changed.
func (m *Machine) Addresses() [][]byte { return m.addresses }

// Limits gives the limits in force.
func (m *Machine) Limits() coord.Limits { return m.limits.Limits }

// View returns the present keyspace. It copies one pointer per 256 events; later writes copy the tree
// nodes that they touch.
func (m *Machine) View() *Keyspace {
	view := m.Keyspace.clone()
	return &view
}
