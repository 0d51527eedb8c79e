package replica

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/lessor"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Config configures a Replica.
type Config struct {
	// Storage belongs to the Replica, which does not close it. It must be bootstrapped, or at least bound to
	// its group.
	Storage *raftlog.Storage
	// Tick is the time between two calls of Tick, equal on all members; 0 is 50 ms.
	Tick time.Duration
	// ExpiryRate bounds the keys that timed-out leases delete in a second; 0 is 5,000.
	ExpiryRate int
	// SnapshotEntries of log since the last snapshot trigger the next one, and so do 64 MiB; 0 is 100,000.
	SnapshotEntries uint64
	// Trail is the number of entries kept behind a snapshot for slow followers, at most those since the
	// previous snapshot; 0 is 5,000.
	Trail uint64
	// ClientIdle is the time after its last command until a client may be forgotten; 0 is an hour.
	ClientIdle time.Duration
	// Pending bounds the requests without an answer; 0 is 16,384.
	Pending int
	// Rand draws the number of the first read round and the name of this process as a leader, different from all earlier
	// ones of this member; nil is crypto/rand.
	Rand io.Reader
	// Features are the feature levels and commands that this member knows; zero is machine.Current.
	Features machine.Features
	// Applied, unless nil, receives each applied command in order, within Apply.
	Applied func(Applied)
	// Logger; nil discards.
	Logger *slog.Logger
}

// Applied is a command of the log with its result. The effects are valid during the call.
type Applied struct {
	Index, Term uint64
	Command     *coordv1.Command
	Result      machine.Result
	Effects     machine.ApplyEffects
}

func (c *Config) defaults() {
	c.Tick = cmp.Or(c.Tick, 50*time.Millisecond)
	c.ExpiryRate = cmp.Or(c.ExpiryRate, 5_000)
	c.SnapshotEntries = cmp.Or(c.SnapshotEntries, 100_000)
	c.Trail = cmp.Or(c.Trail, 5_000)
	c.ClientIdle = cmp.Or(c.ClientIdle, time.Hour)
	c.Pending = cmp.Or(c.Pending, 16_384)
	c.Rand = cmp.Or(c.Rand, rand.Reader)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Features = c.features()
}

func (c *Config) features() machine.Features {
	if c.Features.Levels == (coord.Levels{}) {
		return machine.Current()
	}
	return c.Features
}

// Levels returns the feature levels that the member supports.
func (c *Config) Levels() coord.Levels { return c.features().Levels }

// ElectionTimeout returns the shortest time without a leader before an election.
func (c Config) ElectionTimeout() time.Duration {
	c.defaults()
	return electionTicks * c.Tick
}

func (c *Config) validate() error {
	switch {
	case c.Storage == nil:
		return fault.Invalidf("storage", nil, "is missing")
	case c.Storage.Group() == "":
		return fault.Invalidf("storage", nil, "belongs to no group")
	case c.Tick < 0:
		return fault.Invalidf("tick", c.Tick, "must not be negative")
	}
	return nil
}

const (
	electionTicks  = 10       // without a leader make a follower campaign, after twice as many at the latest
	heartbeatTicks = 2        // between two heartbeats of the leader
	snapshotBytes  = 64 << 20 // of log since the last snapshot trigger the next one

	// internal marks ids of the Replica's own proposals.
	internal = uint64(1) << 63
	// maxCommand bounds one log entry, in bytes.
	maxCommand = 8 << 20
	// maxMessage bounds one append, unless a single entry is larger, and one step of proposals, in bytes.
	maxMessage = 1 << 20
	// maxUncommitted bounds the leader's uncommitted entries, in bytes.
	maxUncommitted = 64 << 20
	// maxInflight bounds the appends in flight to a follower.
	maxInflight = 256
)

// Replica is one member. It is for one goroutine at a time.
type Replica struct {
	config  Config
	id      uint64
	group   uint64
	nonce   uint64 // random, of this process
	storage *raftlog.Storage
	node    *raft.RawNode
	machine *machine.Machine
	lessor  *lessor.Lessor
	log     *slog.Logger

	now        time.Duration
	lastSeen   map[uint64]time.Duration // the last message of each member
	role       role
	membership membership
	leaders    leaders
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
	unsaved *pb.HardState // a commit index for the next write
	since   time.Duration // when unsaved began; see commitRest
	arrived []arrival     // those that Raft took, in rising order; a leader sends one at a time
	out     Output

	held     map[uint64]*pb.Message // for each member, the last append without entries; see Holds
	released bool                   // the next turn sends them
	told     time.Duration          // when the last one came
	dense    bool                   // the last entries came soon after one

	// contradiction ends this member in the next turn; cause is the message that showed it.
	contradiction error
	cause         *pb.Message
	proof         *pb.Message // for the sender of cause; nil: none
	installed     uint32      // the leader's sum at the snapshot of ready
}

// role is the member's role in its term.
type role struct {
	term   uint64
	leader uint64 // 0: unknown
	leads  bool
	// promoted says that an entry of the leader's own term is applied: the leader's state contains all earlier
	// answers.
	promoted bool
	// candidacy counts the ticks until this member stands for election, because its leader has gone; 0: it does not.
	candidacy int
}

// position is the position of an entry.
type position struct{ index, term uint64 }

// snapshots relates the log to its snapshots.
type snapshots struct {
	index, previous uint64 // of the last two
	bytes           uint64 // of entries applied since the last
	joined          uint64 // of the last change that added a member: older snapshots lack it
	writing         bool
}

// arrival is a received snapshot with its state.
type arrival struct {
	position
	machine *machine.Machine
	sum     uint32 // of the leader's log
}

// New starts a member from its storage: the snapshot in force, and the log after it.
//
// Errors: Invalid; Internal, or as coord.Restore, for a damaged storage.
func New(c Config) (*Replica, error) {
	const op = "replica.New"
	c.defaults()
	if err := c.validate(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	r := &Replica{config: c, id: c.Storage.Member(), group: shorten(c.Storage.Group()), storage: c.Storage, log: c.Logger}
	r.proposals.pending = make(map[uint64]uint64)
	r.reads.rounds, r.turn.held = make(map[uint64]*round), make(map[uint64]*pb.Message)
	r.expiry.batches, r.lastSeen = make(map[uint64][]*coordv1.LeaseRef), make(map[uint64]time.Duration)
	r.lessor = lessor.New(lessor.Config{
		Grace: c.ElectionTimeout(), Rate: c.ExpiryRate,
		Keys:    func(id coord.LeaseID) int { return r.machine.LeaseSize(id) },
		Awaited: func(id coord.LeaseID) bool { return r.machine.HasWaiters(id) },
	})
	if err := r.load(); err != nil {
		return nil, fault.Wrap(op, err)
	}
	for _, drawn := range []*uint64{&r.reads.next, &r.nonce} {
		if err := binary.Read(c.Rand, binary.BigEndian, drawn); err != nil {
			return nil, fault.As(op, fault.Internal, err)
		}
	}
	node, err := raft.NewRawNode(raftConfig(r))
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	r.node = node
	r.role.term = node.BasicStatus().GetTerm()
	if v := r.membership.conf.Voters; len(v) == 1 && v[0] == r.id && !r.membership.joint() {
		_ = node.Campaign() // a single voter elects itself
	}
	return r, nil
}

// shorten returns the first eight bytes of a group id, for headers.
func shorten(group string) uint64 {
	var b [8]byte
	copy(b[:], group)
	return binary.BigEndian.Uint64(b[:])
}

// load restores the snapshot in force, or the empty state of a joining member.
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
	if r.machine, err = r.config.Read(snap); err != nil {
		return r.storage.Refused(snap, err)
	}
	at := snap.GetMetadata().GetIndex()
	r.applied = position{at, snap.GetMetadata().GetTerm()}
	r.snapshots.index, r.snapshots.previous = at, at
	if r.membership, err = newMembership(snap); err == nil {
		r.leaders, err = leadersOf(snap)
	}
	return err
}

// Examine reads the snapshot in force as a member does at its start. Errors: as New.
func Examine(storage *raftlog.Storage) error {
	return (&Replica{storage: storage, config: Config{Storage: storage}}).load()
}

// Read restores the machine of a snapshot in Storage, in any goroutine.
//
// Errors: as raftlog.State and coord.Restore.
func (c *Config) Read(snap *pb.Snapshot) (*machine.Machine, error) {
	state, err := c.Storage.State(snap)
	if err != nil {
		return nil, err
	}
	defer func() { _ = state.Close() }()
	m, err := c.features().RestoreFrom(state)
	if fault.KindOf(err) == fault.Unsupported && err != nil {
		return nil, fault.New("", fault.Unsupported,
			"%w: run a program of that level, or restore %s from before its upgrade", err, c.Storage.Dir())
	}
	return m, err
}

func raftConfig(r *Replica) *raft.Config {
	return &raft.Config{
		ID: r.id, Storage: r.storage, Applied: r.applied.index, Logger: raftLog{r.log},
		ElectionTick: electionTicks, HeartbeatTick: heartbeatTicks,
		MaxSizePerMsg: maxMessage, MaxCommittedSizePerReady: 4 << 20,
		MaxUncommittedEntriesSize: maxUncommitted, MaxInflightMsgs: maxInflight, MaxInflightBytes: 16 << 20,
		PreVote: true, CheckQuorum: true, DisableProposalForwarding: true, StepDownOnRemoval: true,
		ReadOnlyOption: raft.ReadOnlySafe,
	}
}

// ID returns the member's id.
func (r *Replica) ID() uint64 { return r.id }

// Machine returns the replicated state. Only Apply changes it, and replaces it after a snapshot.
func (r *Replica) Machine() *machine.Machine { return r.machine }

// Header returns the header of an answer at this moment.
func (r *Replica) Header() coord.Header {
	return coord.Header{Group: r.group, Member: r.id, Revision: r.machine.Revision(), Term: r.role.term}
}

// Remaining returns the remaining time of a lease on this leader's clock; false at other members and for
// unknown leases.
func (r *Replica) Remaining(now time.Duration, id coord.LeaseID) (time.Duration, bool) {
	return r.lessor.Remaining(now, id)
}

// NotLeader is the error of a leader's operation at another member.
type NotLeader struct {
	Leader Member // zero if unknown
	Term   uint64
	// Maybe says that the proposal is in the log of a former leader and may still be applied. Otherwise
	// nothing happened.
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
