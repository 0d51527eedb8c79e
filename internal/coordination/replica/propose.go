package replica

import (
	"encoding/binary"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// proposals are the proposals that wait for their answer.
type proposals struct {
	staged []proposal
	change changing
	// pending has the term in which each was proposed. An entry that carries an id is the
	// proposal's own if it is of that term: only one member leads a term, and only once.
	pending map[uint64]uint64
}

type proposal struct {
	id   uint64
	data []byte
}

// changing is the change of configuration under way: one at a time.
type changing struct {
	id     uint64 // 0: none
	change Change
	term   uint64 // proposed in; 0: not yet
	joint  bool   // applied, and the joint configuration not left
}

// Answer is what came of what was asked under an id. Err is nil or a *fault.Error:
// Unavailable, wrapping *NotLeader, when this member does not lead any more or never did;
// LimitReached when too much is waiting; for a change Conflict when another is under way. Why a command
// was refused by the state is in its Result.
type Answer struct {
	ID       uint64
	Header   coord.Header
	Result   coord.Result    // of a proposal
	Renewals []coord.Renewal // of a keepalive
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

// Pack encodes a command for Propose, in the caller's own time.
//
// Errors: those of machine.Encode; TooLarge.
func Pack(cmd coord.Command) ([]byte, error) {
	const op = "replica.Pack"
	encoded, err := machine.Encode(cmd)
	if err != nil {
		return nil, err
	}
	if len(encoded) > maxCommand {
		return nil, fault.New(op, fault.TooLarge, "the command has %d bytes, at most %d", len(encoded), maxCommand)
	}
	return append(make([]byte, 8, 8+len(encoded)), encoded...), nil
}

// Propose proposals for a command, as made by Pack, to be applied. The id is the owner's, unused
// before, above 0 and below 1<<63. The packed command is the Replica's from then on.
func (r *Replica) Propose(id uint64, packed []byte) {
	if err := r.overloaded(); err != nil {
		r.refuse(id, err)
		return
	}
	r.proposals.stage(id, packed)
}

func (p *proposals) stage(id uint64, packed []byte) {
	binary.BigEndian.PutUint64(packed, id)
	p.staged = append(p.staged, proposal{id, packed})
}

// overloaded returns LimitReached if too many requests wait for an answer.
func (r *Replica) overloaded() error {
	if len(r.proposals.staged)+len(r.proposals.pending)+r.reads.waiting() < r.config.Pending {
		return nil
	}
	return fault.New("replica", fault.LimitReached, "%d requests wait for an answer already", r.config.Pending)
}

// Change proposals for a change of the configuration; see Propose for the id. It is answered when it
// is in force, and a joint configuration left.
//
// Errors beside those of Answer: Invalid, NotFound, Exists, LimitReached.
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

// Transfer hands the leadership to another voter. Whether it took it shows in Status; Raft
// gives up after an election timeout, and takes no proposals meanwhile.
//
// Errors: Unavailable, wrapping *NotLeader; NotFound when it is no voter; Invalid for this member.
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

// propose hands what is staged to Raft, as few messages as the bound on their size allows: each
// is at once sent to all followers.
func (p *proposals) propose(r *Replica) {
	status := r.node.BasicStatus()
	leads := status.RaftState == raft.StateLeader
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

func (p *proposals) proposeBatch(r *Replica, batch []proposal, term uint64, leads bool) {
	entries := make([]*pb.Entry, len(batch))
	for i, one := range batch {
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
			r.refuse(one.id, fault.New("replica", fault.LimitReached, "the group falls behind: %d bytes wait for a majority", maxUncommitted))
		default:
			r.refuse(one.id, r.notLeader(false))
		}
	}
}

// settleChange finds the change that was just proposed among the entries to be written. Raft
// puts an empty entry in its place when another is under way.
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

// demote answers everybody who waits for a leadership that is over.
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

// Output is what Apply did and what is to be done.
type Output struct {
	Answers []Answer
	// Image, if not nil, is to be written, elsewhere, and its outcome given to Written.
	Image *Image
	// Reconfigured says that Members has changed.
	Reconfigured bool
	// Restored says that a snapshot of the leader has replaced the state: what was applied
	// between was not heard of.
	Restored bool
}

// expiry is what the leader proposes by itself.
type expiry struct {
	next    uint64
	batches map[uint64][]coord.LeaseRef // proposed
	marks   []progressMark              // of this leadership, about eight over ClientIdle
	forget  uint64                      // id of the ClientsExpire under way, 0: none
}

// progressMark notes how far the log was at some time.
type progressMark struct {
	at    time.Duration
	index uint64
}

func (e *expiry) reset() {
	clear(e.batches)
	e.marks, e.forget = nil, 0
}

// expire proposes the end of what has timed out.
func (e *expiry) expire(r *Replica) {
	if !r.role.promoted {
		return
	}
	for refs := r.lessor.Due(r.now); len(refs) > 0; refs = r.lessor.Due(r.now) {
		id := r.expiry.own(r, &coord.Expire{Term: r.lessor.Term(), Leases: refs})
		e.batches[id] = refs
	}
	r.expiry.forgetClients(r)
}

// forgetClients proposes to forget the clients not heard of for ClientIdle, all of it measured
// in this leadership.
func (e *expiry) forgetClients(r *Replica) {
	e, idle := e, r.config.ClientIdle
	if n := len(e.marks); n == 0 || r.now-e.marks[n-1].at >= idle/8 {
		e.marks = append(e.marks, progressMark{r.now, r.applied.index})
	}
	if len(e.marks) < 2 || r.now-e.marks[0].at < idle {
		return
	}
	since := e.marks[0].index + 1 // who was last heard of up to there
	e.marks = e.marks[1:]
	if r.machine.Clients() > 0 && e.forget == 0 {
		e.forget = r.expiry.own(r, &coord.ClientsExpire{Term: r.role.term, IdleSince: since})
	}
}

// own stages a command of the leader itself.
func (e *expiry) own(r *Replica, op coord.Op) uint64 {
	e.next++
	id := internal | e.next
	packed, err := Pack(coord.Command{Op: op})
	if err != nil {
		panic(err) // its size is bounded
	}
	r.proposals.stage(id, packed)
	return id
}

// again takes note that an own command was refused, or applied.
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
