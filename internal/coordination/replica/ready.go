package replica

import (
	"encoding/binary"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Tick tells that Config.Tick has passed.
func (r *Replica) Tick(now time.Duration) {
	r.now = max(r.now, now)
	r.node.Tick()
	r.reads.tick(uint64(max(2, r.config.ElectionTicks/2)))
	r.expire()
}

// Step takes a message of another member. One that Raft has no use for is passed over.
//
// Errors: Invalid for what no member sends.
func (r *Replica) Step(m *pb.Message) error {
	if err := r.check(m); err != nil {
		return fault.Wrap("replica.Step", err)
	}
	if m.GetType() == pb.MsgReadIndex && !r.serves() {
		return nil // it will ask again
	}
	_ = r.node.Step(m) // says only that it was of no use
	return nil
}

// serves says whether a round that another member asks for can begin. A follower would pass
// the question on in the asker's name, which the transport between members does not admit.
func (r *Replica) serves() bool {
	return r.role.promoted && r.node.BasicStatus().RaftState == raft.StateLeader
}

// Restore takes the leader's snapshot with the state that came with it, which must be in the
// storage already; see storage.Write and Read.
//
// Errors: Invalid.
func (r *Replica) Restore(m *pb.Message, machine *machine.Machine) error {
	const op = "replica.Restore"
	meta := m.GetSnapshot().GetMetadata()
	switch {
	case m.GetType() != pb.MsgSnap || m.GetTo() != r.id || m.GetFrom() == 0 || m.GetFrom() == r.id:
		return fault.Wrap(op, fault.Invalidf("message", nil, "is no snapshot for this member"))
	case meta.GetIndex() == 0 || meta.GetTerm() == 0 || meta.GetTerm() > m.GetTerm() || machine == nil:
		return fault.Wrap(op, fault.Invalidf("snapshot", nil, "is not whole"))
	}
	if _, err := newRoster(m.GetSnapshot()); err != nil {
		return fault.Wrap(op, err)
	}
	r.arrived = &arrival{mark{meta.GetIndex(), meta.GetTerm()}, machine}
	_ = r.node.Step(m)
	return nil
}

// Unreachable notes that messages to a member were dropped.
func (r *Replica) Unreachable(id uint64) { r.node.ReportUnreachable(id) }

// SnapshotSent notes how the sending of a snapshot ended, once for each MsgSnap.
func (r *Replica) SnapshotSent(id uint64, ok bool) {
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	r.node.ReportSnapshot(id, status)
}

// Ready says that Prepare, Apply and Persist have work.
func (r *Replica) Ready() bool {
	return len(r.asks.staged) > 0 || len(r.out.Answers) > 0 || r.asks.change.id != 0 && r.asks.change.term == 0 ||
		r.canBegin() || r.node.HasReady()
}

// Prepare begins a turn, and gives the messages that may leave before the disk has what came
// with them. Apply and Persist must follow.
func (r *Replica) Prepare(now time.Duration) []*pb.Message {
	r.now = max(r.now, now)
	r.propose()
	r.beginRound()
	r.ready = r.node.Ready()
	r.observe()
	r.settleChange()
	return r.messages(true)
}

// messages gives those that leave before or after the disk. Acknowledgements and votes
// promise what must be durable; a candidate makes its term durable before it asks for votes, which
// the algorithm does not demand but is easier to reason about.
func (r *Replica) messages(early bool) []*pb.Message {
	var some []*pb.Message
	for _, m := range r.ready.Messages {
		switch m.GetType() {
		case pb.MsgApp, pb.MsgSnap, pb.MsgHeartbeat, pb.MsgHeartbeatResp, pb.MsgReadIndex, pb.MsgReadIndexResp, pb.MsgTimeoutNow:
			if early {
				some = append(some, m)
			}
		default:
			if !early {
				some = append(some, m)
			}
		}
	}
	return some
}

// observe takes over the role that Raft is in.
func (r *Replica) observe() {
	was := r.role
	if soft := r.ready.SoftState; soft != nil {
		r.role.leader, r.role.leads = soft.Lead, soft.RaftState == raft.StateLeader
	}
	if hard := r.ready.HardState; hard != nil {
		r.role.term = hard.GetTerm()
	}
	if !r.role.leads || r.role.term != was.term {
		r.role.promoted = false
		if was.leads {
			r.demote()
		}
	}
	if r.role.leader != was.leader || r.role.term != was.term {
		r.reads.again(func(*round) bool { return true }) // whoever was to confirm them does not lead
	}
}

// Apply takes what a majority has into the state, and gives the answers. Nobody may read the
// Machine meanwhile.
//
// Errors: Unsupported or Invalid for an entry that this version cannot apply, Internal; the process must end.
func (r *Replica) Apply(now time.Duration) (Output, error) {
	const op = "replica.Apply"
	r.now = max(r.now, now)
	if snap := r.ready.Snapshot; !raft.IsEmptySnap(snap) {
		if err := r.install(snap); err != nil {
			return Output{}, fault.Wrap(op, err)
		}
	}
	for _, e := range r.ready.CommittedEntries {
		if err := r.apply(e); err != nil {
			return Output{}, fault.Wrap(op, err)
		}
	}
	r.reads.confirm(r.ready.ReadStates)
	r.finishRounds()
	r.takeImage()
	out := r.out
	r.out, r.arrived = Output{}, nil
	return out, nil
}

// install puts the state that came with the leader's snapshot in place of the present one.
func (r *Replica) install(snap *pb.Snapshot) error {
	at := mark{snap.GetMetadata().GetIndex(), snap.GetMetadata().GetTerm()}
	if r.arrived == nil || r.arrived.mark != at {
		return fault.New("", fault.Internal, "the state of the snapshot at %d did not come with it", at.index)
	}
	roster, err := newRoster(snap)
	if err != nil {
		return err
	}
	r.machine, r.applied, r.roster, r.arrived = r.arrived.machine, at, roster, nil
	r.taken.index, r.taken.previous, r.taken.bytes = at.index, at.index, 0
	r.out.Restored, r.out.Reconfigured = true, true
	return nil
}

func (r *Replica) apply(e *pb.Entry) error {
	switch {
	case e.GetType() == pb.EntryConfChangeV2:
		if err := r.reconfigure(e); err != nil {
			return err
		}
	case e.GetType() != pb.EntryNormal:
		return fault.New("", fault.Unsupported, "entry %d is of type %s", e.GetIndex(), e.GetType())
	case len(e.GetData()) > 0:
		if err := r.execute(e); err != nil {
			return err
		}
	}
	r.applied = mark{e.GetIndex(), e.GetTerm()}
	r.taken.bytes += uint64(len(e.GetData()))
	if r.role.leads && !r.role.promoted && e.GetTerm() == r.role.term {
		r.role.promoted = true
		r.lessor.Promote(r.now, r.role.term, r.machine.Leases())
	}
	return nil
}

// execute applies a command and answers who proposed it here.
func (r *Replica) execute(e *pb.Entry) error {
	if len(e.GetData()) < 8 {
		return fault.New("", fault.Invalid, "entry %d is cut off", e.GetIndex())
	}
	id := binary.BigEndian.Uint64(e.GetData())
	cmd, err := machine.Decode(e.GetData()[8:])
	if err != nil {
		return err
	}
	result, effects := r.machine.Apply(e.GetIndex(), e.GetTerm(), cmd)
	r.lessor.Granted(r.now, effects.Granted)
	r.lessor.Ended(effects.Ended)
	r.reads.retry = r.reads.retry || len(effects.Ended) > 0
	if r.config.Applied != nil {
		r.config.Applied(Applied{e.GetIndex(), e.GetTerm(), cmd, result, effects})
	}
	if term, ok := r.asks.pending[id]; ok && term == e.GetTerm() {
		delete(r.asks.pending, id)
		if id&internal != 0 {
			r.again(id)
		} else {
			r.answer(Answer{ID: id, Result: result})
		}
	}
	return nil
}

// reconfigure applies a change of the configuration, or the leaving of a joint one.
func (r *Replica) reconfigure(e *pb.Entry) error {
	cc := new(pb.ConfChangeV2)
	if err := proto.Unmarshal(e.GetData(), cc); err != nil {
		return fault.As("", fault.Invalid, err)
	}
	id, members, err := named(cc)
	if err != nil {
		return err
	}
	r.roster.change(r.node.ApplyConfChange(cc), members)
	r.out.Reconfigured = true
	if len(cc.GetChanges()) > 0 {
		r.taken.joined = e.GetIndex()
		r.storage.Require(e.GetIndex())
	}
	c := &r.asks.change
	if c.id != 0 && (c.joint || c.id == id && c.term == e.GetTerm()) {
		if c.joint = r.roster.joint(); !c.joint {
			r.answer(Answer{ID: c.id})
			*c = changing{}
		}
	}
	return nil
}

// Persist ends a turn: what must be durable is, and the messages that promise it may leave.
//
// Errors: Internal; the process must end.
func (r *Replica) Persist() ([]*pb.Message, error) {
	const op = "replica.Persist"
	rd := &r.ready
	if rd.HardState != nil {
		r.unsaved = rd.HardState
	}
	if !raft.IsEmptySnap(rd.Snapshot) {
		if err := r.storage.Restore(rd.Snapshot, r.unsaved); err != nil {
			return nil, fault.Wrap(op, err)
		}
	}
	// A commit index alone is not worth a write: the leader tells it again.
	if len(rd.Entries) > 0 || rd.MustSync {
		if err := r.storage.Save(r.unsaved, rd.Entries, rd.MustSync); err != nil {
			return nil, fault.Wrap(op, err)
		}
		r.unsaved = nil
	}
	late := r.messages(false)
	r.node.Advance(*rd)
	r.ready = raft.Ready{}
	return late, nil
}
