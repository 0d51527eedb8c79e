package replica

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/lessor"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Config is what a Replica is made of.
type Config struct {
	// Storage, founded or at least bound to its group. The Replica owns it, but does not close it.
	Storage *raftlog.Storage
	// Tick is the time between two calls of Tick; 0 is 50 ms. All members must have the same.
	Tick time.Duration
	// ElectionTicks without a leader make a follower stand, at the latest after twice as many; 0
	// is 10.
	ElectionTicks int
	// HeartbeatTicks lie between two heartbeats of the leader, fewer than ElectionTicks; 0 is 2.
	HeartbeatTicks int
	// ExpiryRate bounds the keys deleted in a second with the leases that time out; 0 is 5,000.
	ExpiryRate int
	// SnapshotEntries and SnapshotBytes of log since the last snapshot call for the next one;
	// 0 is 100,000 and 64 MiB.
	SnapshotEntries, SnapshotBytes uint64
	// Trail is how many entries are kept behind a snapshot for slow followers, though never more
	// than came since the one before; 0 is 5,000.
	Trail uint64
	// ClientIdle is how long after its last command the group may forget a client; 0 is an hour.
	ClientIdle time.Duration
	// Pending bounds what waits for an answer; 0 is 16,384.
	Pending int
	// Rand gives the number of the first round of reads, which must not be one of an earlier life
	// of the member; nil is crypto/rand.
	Rand io.Reader
	// Applied, if not nil, hears of each command as it is applied, in order, within Apply.
	Applied func(Applied)
	// Logger; nil discards.
	Logger *slog.Logger
}

// Applied is a command of the log and what it came to. The effects are valid during the call.
type Applied struct {
	Index, Term uint64
	Command     coord.Command
	Result      coord.Result
	Effects     machine.ApplyEffects
}

func (c *Config) defaults() {
	set(&c.Tick, 50*time.Millisecond)
	set(&c.ElectionTicks, 10)
	set(&c.HeartbeatTicks, 2)
	set(&c.ExpiryRate, 5_000)
	set(&c.SnapshotEntries, 100_000)
	set(&c.SnapshotBytes, 64<<20)
	set(&c.Trail, 5_000)
	set(&c.ClientIdle, time.Hour)
	set(&c.Pending, 16_384)
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ElectionTimeout is the shortest time without a leader after which a member stands.
func (c Config) ElectionTimeout() time.Duration {
	c.defaults()
	return time.Duration(c.ElectionTicks) * c.Tick
}

func (c *Config) validate() error {
	switch {
	case c.Storage == nil:
		return fault.Invalidf("storage", nil, "is missing")
	case c.Storage.Group() == "":
		return fault.Invalidf("storage", nil, "belongs to no group")
	case c.Tick < 0 || c.HeartbeatTicks < 1 || c.ElectionTicks <= c.HeartbeatTicks:
		return fault.Invalidf("election_ticks", c.ElectionTicks, "must be above heartbeat_ticks, %d", c.HeartbeatTicks)
	}
	return nil
}

const (
	// internal marks ids of the Replica's own proposals.
	internal = uint64(1) << 63
	// maxCommand bounds one entry of the log, in bytes.
	maxCommand = 8 << 20
	// maxMessage bounds one append, unless an entry is larger, in bytes; and one step of proposals.
	maxMessage = 1 << 20
	// maxUncommitted bounds what the leader takes on before a majority has it, in bytes.
	maxUncommitted = 64 << 20
	// maxInflight appends may be on their way to a follower.
	maxInflight = 256
)

// Replica is one member. It is for one goroutine at a time.
type Replica struct {
	config  Config
	id      uint64
	group   uint64
	storage *raftlog.Storage
	node    *raft.RawNode
	machine *machine.Machine
	lessor  *lessor.Lessor
	log     *slog.Logger

	now        time.Duration
	role       role
	membership membership
	applied    position
	snapshots  snapshots
	proposals  proposals
	expiry     expiry
	reads      reads
	turn       turn
}

// turn is the work between Prepare and Persist.
type turn struct {
	ready   raft.Ready
	unsaved *pb.HardState // a commit index that waits for the next write
	arrived *arrival
	out     Output
}

// role is what the member is in its term.
type role struct {
	term   uint64
	leader uint64 // 0 when not known
	leads  bool
	// promoted says that an entry of the own term is applied: the leader knows all that any
	// leader before has answered.
	promoted bool
}

// position is where an entry stands.
type position struct{ index, term uint64 }

// snapshots is how the log stands to its snapshots.
type snapshots struct {
	index, previous uint64 // of the last two
	bytes           uint64 // of entries applied since the last
	joined          uint64 // of the last change that named a member: an older snapshot does not know it
	writing         bool
}

// arrival is the state that came with a snapshot of the leader.
type arrival struct {
	position
	machine *machine.Machine
}

// New starts a member from what its storage has: the snapshot in force, and the log after it.
//
// Errors: Invalid; Internal, or those of coord.Restore, when the storage is damaged.
func New(c Config) (*Replica, error) {
	const op = "replica.New"
	c.defaults()
	if err := c.validate(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	r := &Replica{config: c, id: c.Storage.Member(), group: shorten(c.Storage.Group()), storage: c.Storage, log: c.Logger}
	r.proposals.pending = make(map[uint64]uint64)
	r.reads.rounds = make(map[uint64]*round)
	r.expiry.batches = make(map[uint64][]coord.LeaseRef)
	r.lessor = lessor.New(lessor.Config{
		Grace: c.ElectionTimeout(), Rate: c.ExpiryRate,
		Keys:    func(id coord.LeaseID) int { return r.machine.LeaseSize(id) },
		Awaited: func(id coord.LeaseID) bool { return r.machine.HasWaiters(id) },
	})
	if err := r.load(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if err := binary.Read(c.Rand, binary.BigEndian, &r.reads.next); err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	node, err := raft.NewRawNode(raftConfig(r))
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	r.node = node
	r.role.term = node.BasicStatus().GetTerm()
	if v := r.membership.conf.Voters; len(v) == 1 && v[0] == r.id && !r.membership.joint() {
		_ = node.Campaign() // there is nobody to wait for
	}
	return r, nil
}

// shorten is how a header names a group: by the first eight bytes of its id.
func shorten(group string) uint64 {
	var b [8]byte
	copy(b[:], group)
	return binary.BigEndian.Uint64(b[:])
}

// load takes the state from the snapshot in force, or the empty state of one who joins.
func (r *Replica) load() error {
	r.machine = machine.New()
	if !r.storage.HasSnapshot() {
		r.membership, _ = newMembership(nil)
		return nil
	}
	snap, err := r.storage.Snapshot()
	if err != nil {
		return err
	}
	if r.machine, err = Read(r.storage, snap); err != nil {
		return err
	}
	at := snap.GetMetadata().GetIndex()
	r.applied = position{at, snap.GetMetadata().GetTerm()}
	r.snapshots.index, r.snapshots.previous = at, at
	r.membership, err = newMembership(snap)
	return err
}

// Read makes the machine of a snapshot whose file the storage has. It is for any goroutine.
//
// Errors: those of storage.State and coord.Restore.
func Read(s *raftlog.Storage, snap *pb.Snapshot) (*machine.Machine, error) {
	state, err := s.State(snap)
	if err != nil {
		return nil, err
	}
	defer func() { _ = state.Close() }()
	return machine.RestoreFrom(state)
}

func raftConfig(r *Replica) *raft.Config {
	return &raft.Config{
		ID: r.id, Storage: r.storage, Applied: r.applied.index, Logger: raftLog{r.log},
		ElectionTick: r.config.ElectionTicks, HeartbeatTick: r.config.HeartbeatTicks,
		MaxSizePerMsg: maxMessage, MaxCommittedSizePerReady: 4 << 20,
		MaxUncommittedEntriesSize: maxUncommitted, MaxInflightMsgs: maxInflight, MaxInflightBytes: 16 << 20,
		PreVote: true, CheckQuorum: true, DisableProposalForwarding: true, StepDownOnRemoval: true,
		ReadOnlyOption: raft.ReadOnlySafe,
	}
}

// ID is the member's id.
func (r *Replica) ID() uint64 { return r.id }

// Machine is the replicated state. Only Apply changes it, and puts another in its place when a
// snapshot arrives.
func (r *Replica) Machine() *machine.Machine { return r.machine }

// Header is that of an answer given now.
func (r *Replica) Header() coord.Header {
	return coord.Header{Group: r.group, Member: r.id, Revision: r.machine.Revision(), Term: r.role.term}
}

// Remaining is the time that a lease has left on this leader's clock; false on any other
// member, and for a lease that there is not.
func (r *Replica) Remaining(now time.Duration, id coord.LeaseID) (time.Duration, bool) {
	return r.lessor.Remaining(now, id)
}

// NotLeader is why a member could not do what only the leader can.
type NotLeader struct {
	Leader Member // as far as known; zero when not
	Term   uint64
	// Maybe says that a proposal is in the log of a leader that has fallen, and may yet be applied.
	// Without it nothing happened.
	Maybe bool
}

// Error implements error.
func (n *NotLeader) Error() string {
	switch {
	case n.Maybe:
		return fmt.Sprintf("the leadership was lost in term %d, the command may yet be applied", n.Term)
	case n.Leader.ID == 0:
		return fmt.Sprintf("no leader is known in term %d", n.Term)
	default:
		return fmt.Sprintf("member %x leads in term %d", n.Leader.ID, n.Term)
	}
}

func (r *Replica) notLeader(maybe bool) error {
	leader := Member{ID: r.role.leader, Peer: r.membership.peers[r.role.leader]}
	if r.role.leader == r.id {
		leader = Member{}
	}
	return fault.As("replica", fault.Unavailable, &NotLeader{Leader: leader, Term: r.role.term, Maybe: maybe})
}
