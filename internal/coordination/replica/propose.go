package replica

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// proposals holds the proposals without an answer.
type proposals struct {
	staged []proposal
	change changing
	// pending maps ids to the terms of their proposals. An entry with an id belongs to the proposal of the
	// same term, because one member leads a term, once.
	pending map[uint64]uint64
}

type proposal struct {
	id uint64
	Packed
}

// Packed is an encoded command.
type Packed struct {
	data  []byte // room for entryHead, and the command
	level uint32 // feature level that it needs
}

// changing is the configuration change under way, one at a time.
type changing struct {
	id     uint64 // 0: none
	change Change
	term   uint64 // of the proposal; 0: not proposed yet
	joint  bool   // applied, but still in the joint configuration
}

// Answer is the outcome of a request with an id. Err is nil or a *fault.Error: Unavailable, wrapping
// *NotLeader, at a member that does not lead or lost the leadership; PoolExhausted for too many requests;
// Conflict for a second configuration change. Result holds the refusal of a command by the state machine.
type Answer struct {
	ID       uint64
	Header   coord.Header
	Result   machine.Result    // of a proposal
	Renewals []machine.Renewal // of a keepalive
	Err      error
}

func (r *Replica) answer(a Answer) {
	a.Header = r.Header()
	r.turn.out.Answers = append(r.turn.out.Answers, a)
}

func (r *Replica) refuse(id uint64, err error) {
	if id&internal != 0 {
		r.expiry.again(r, id)
		return
	}
	r.answer(Answer{ID: id, Err: err})
}

// Pack encodes a command for Propose, outside the Replica's goroutine. It sets the fields of a command that belong to the leader.
//
// Errors: as machine.Encode; TooLarge.
func (c *Config) Pack(cmd *coordv1.Command) (Packed, error) {
	const op = "replica.Pack"
	if cmd.Random = 0; makesID(cmd) {
		cmd.Random = c.draw()
	}
	data, level, err := c.features().Encode(cmd, entryHead)
	if err != nil {
		return Packed{}, err
	}
	if size := len(data) - entryHead; size > maxCommand {
		return Packed{}, fault.New(op, fault.TooLarge, "the command has %d bytes, at most %d", size, maxCommand)
	}
	return Packed{data, level}, nil
}

// makesID reports whether a command makes a lease or a client under an id of the leader's choice.
func makesID(cmd *coordv1.Command) bool {
	grant := cmd.GetLeaseGrant()
	return cmd.GetOpenClient() != nil || grant != nil && grant.GetId() == 0
}

// draw returns the random number of a command. An id must not be guessed: it is a credential.
func (c *Config) draw() (random uint64) {
	source := c.Rand
	source = cmp.Or(source, rand.Reader)
	if err := binary.Read(source, binary.BigEndian, &random); err != nil {
		panic("replica: " + err.Error()) // a source of randomness never fails
	}
	return random
}

// Propose proposes a packed command. The caller chooses an unused id above 0 and below 1<<63. The Replica owns
// the packed command afterwards. A command above the feature level of the group is refused with Unsupported,
// field "level".
func (r *Replica) Propose(id uint64, packed Packed) {
	if err := r.overloaded(); err != nil {
		r.refuse(id, err)
		return
	}
	r.proposals.stage(id, packed)
}

func (p *proposals) stage(id uint64, packed Packed) {
	binary.BigEndian.PutUint64(packed.data, id)
	p.staged = append(p.staged, proposal{id, packed})
}

// overloaded returns PoolExhausted for too many requests without an answer.
func (r *Replica) overloaded() error {
	if len(r.proposals.staged)+len(r.proposals.pending)+r.reads.waiting() < r.config.Pending {
		return nil
	}
	return fault.Exhausted("replica", "requests", false, "%d requests wait for an answer already: retry later", r.config.Pending)
}

// Change proposes a change of the configuration; see Propose for the id. The answer follows the end of the
// joint configuration.
//
// Errors: as Answer; Invalid, NotFound, Exists, LimitReached, PoolExhausted.
func (r *Replica) Change(id uint64, c Change) {
	const op = "replica.Change"
	if err := r.membership.validate(c); err != nil {
		r.refuse(id, fault.Wrap(op, err))
		return
	}
	if r.proposals.change.id != 0 || r.membership.joint() {
		r.refuse(id, fault.New(op, fault.Conflict, "another change is under way"))
		return
	}
	r.proposals.change = changing{id: id, change: c}
}

// Transfer hands the leadership to another voter. Status shows the success. Raft gives up after an election
// timeout, and refuses proposals meanwhile.
//
// Errors: Unavailable, wrapping *NotLeader; NotFound for a member without a vote; Invalid for this member.
func (r *Replica) Transfer(to uint64) error {
	const op = "replica.Transfer"
	switch {
	case !r.role.leads:
		return fault.Wrap(op, r.notLeader(false))
	case to == r.id:
		return fault.Wrap(op, fault.Invalidf("member", to, "leads already"))
	case !r.membership.votes(to):
		return fault.New(op, fault.NotFound, "member %x does not vote", to)
	}
	r.node.TransferLeader(to)
	return nil
}

// propose passes staged proposals to Raft in few messages within the size bound. Raft sends each message to
// all followers at once.
func (p *proposals) propose(r *Replica) {
	status := r.node.BasicStatus()
	leads := status.RaftState == raft.StateLeader
	p.keepToLevel(r, leads)
	for rest := p.staged; len(rest) > 0; {
		n, size := 0, 0
		for n < len(rest) && (n == 0 || size+len(rest[n].data) <= maxMessage) {
			size += len(rest[n].data)
			n++
		}
		r.proposals.proposeBatch(r, rest[:n], status.GetTerm(), leads)
		rest = rest[n:]
	}
	clear(p.staged)
	p.staged = p.staged[:0]
	if c := &p.change; c.id != 0 && c.term == 0 {
		if !leads || r.node.ProposeConfChange(c.change.entry(c.id)) != nil {
			r.refuse(c.id, r.notLeader(false))
			*c = changing{}
			return
		}
		c.term = status.GetTerm()
	}
}

// keepToLevel refuses staged commands above the feature level of the group. A new leader may not have applied
// the latest level yet: then the caller asks again.
func (p *proposals) keepToLevel(r *Replica, leads bool) {
	level := r.machine.Level()
	p.staged = slices.DeleteFunc(p.staged, func(one proposal) bool {
		switch {
		case !leads || one.level <= level:
			return false
		case !r.role.promoted:
			r.refuse(one.id, r.notLeader(false))
		default:
			r.refuse(one.id, fault.Refused(fault.Unsupported, "level",
				"the command needs feature level %d, the group is at feature level %d", one.level, level))
		}
		return true
	})
}

func (p *proposals) proposeBatch(r *Replica, batch []proposal, term uint64, leads bool) {
	entries := make([]*pb.Entry, len(batch))
	for i, one := range batch {
		binary.BigEndian.PutUint64(one.data[8:], r.nonce)
		entries[i] = &pb.Entry{Data: one.data}
	}
	var err error = raft.ErrProposalDropped
	if leads {
		err = r.node.Step(&pb.Message{Type: pb.MsgProp.Enum(), From: new(r.id), Entries: entries})
	}
	for _, one := range batch {
		switch {
		case err == nil:
			p.pending[one.id] = term
		case leads && r.node.BasicStatus().LeadTransferee == 0:
			r.refuse(one.id, fault.Exhausted("replica", "uncommitted", false, "the group falls behind: %d bytes wait for a majority", maxUncommitted))
		default:
			r.refuse(one.id, r.notLeader(false))
		}
	}
}

// settleChange looks for the proposed change among the new entries. Raft writes an empty entry instead if
// another change is under way.
func (p *proposals) settleChange(r *Replica) {
	c := &p.change
	if c.id == 0 || c.change.empty() {
		return
	}
	for _, e := range r.turn.ready.Entries {
		if e.GetType() != pb.EntryConfChangeV2 || e.GetTerm() != c.term {
			continue
		}
		cc := new(pb.ConfChangeV2)
		if proto.Unmarshal(e.GetData(), cc) != nil {
			continue
		}
		if id, _, _ := named(cc); id == c.id {
			c.change = Change{} // found
			return
		}
	}
	r.refuse(c.id, fault.New("replica.Change", fault.Conflict, "another change is under way"))
	*c = changing{}
}

func (c Change) empty() bool { return len(c.Voters)+len(c.Learners)+len(c.Remove) == 0 }

// demote answers all requests of a lost leadership.
func (r *Replica) demote() {
	r.lessor.Demote()
	for _, id := range sortedKeys(r.proposals.pending) {
		if term := r.proposals.pending[id]; !r.role.leads || term != r.role.term {
			delete(r.proposals.pending, id)
			r.refuse(id, r.notLeader(true))
		}
	}
	if c := &r.proposals.change; c.id != 0 && c.term != 0 && (!r.role.leads || c.term != r.role.term) {
		r.refuse(c.id, r.notLeader(true))
		*c = changing{}
	}
	r.reads.dropKeeps(func(id uint64) { r.refuse(id, r.notLeader(false)) })
	r.expiry.reset()
}

// Output holds the answers of Apply and the work that follows.
type Output struct {
	Answers []Answer
	// Image, unless nil, must be written outside the turn, and its result passed to Written.
	Image *Image
	// Checkpoint, unless nil, is the last one of the turn.
	Checkpoint *Checkpoint
	// Reconfigured says that Members has changed.
	Reconfigured bool
	// Restored says that a snapshot replaced the state: the commands between were not applied one by one.
	Restored bool
}

// expiry holds the leader's own proposals.
type expiry struct {
	next    uint64
	batches map[uint64][]*coordv1.LeaseRef // proposed
	marks   []progressMark                 // of this leadership, about eight in a ClientIdle
	forget  uint64                         // id of the proposed ClientsExpire; 0: none
}

// progressMark records the applied index at a time.
type progressMark struct {
	at    time.Duration
	index uint64
}

func (e *expiry) reset() {
	clear(e.batches)
	e.marks, e.forget = nil, 0
}

// expire proposes the end of timed-out leases and clients.
func (e *expiry) expire(r *Replica) {
	if !r.role.promoted {
		return
	}
	for refs := r.lessor.Due(r.now); len(refs) > 0; refs = r.lessor.Due(r.now) {
		id := r.expiry.own(r, &coordv1.Command{Request: &coordv1.Command_Expire{Expire: &coordv1.Expire{Term: r.lessor.Term(), Leases: refs}}})
		e.batches[id] = refs
	}
	r.expiry.forgetClients(r)
}

// forgetClients proposes to forget clients without a command for ClientIdle, measured in this leadership only.
func (e *expiry) forgetClients(r *Replica) {
	e, idle := e, r.config.ClientIdle
	if n := len(e.marks); n == 0 || r.now-e.marks[n-1].at >= idle/8 {
		e.marks = append(e.marks, progressMark{r.now, r.applied.index})
	}
	if len(e.marks) < 2 || r.now-e.marks[0].at < idle {
		return
	}
	since := e.marks[0].index + 1 // later clients stay
	e.marks = e.marks[1:]
	if r.machine.Clients() > 0 && e.forget == 0 {
		e.forget = r.expiry.own(r, &coordv1.Command{Request: &coordv1.Command_ClientsExpire{
			ClientsExpire: &coordv1.ClientsExpire{Term: r.role.term, IdleSince: since},
		}})
	}
}

// own stages a command of the leader itself.
func (e *expiry) own(r *Replica, cmd *coordv1.Command) uint64 {
	e.next++
	id := internal | e.next
	packed, err := r.config.Pack(cmd)
	if err != nil {
		panic(err) // impossible: its size is bounded
	}
	r.proposals.stage(id, packed)
	return id
}

// again handles the refusal or application of an own command.
func (e *expiry) again(r *Replica, id uint64) {
	if id == e.forget {
		e.forget = 0
	}
	if refs, ok := e.batches[id]; ok {
		delete(e.batches, id)
		r.lessor.Again(refs)
		r.reads.retry = true
	}
}
