package replica

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Tick advances Raft's clock by Config.Tick.
func (r *Replica) Tick(now time.Duration) {
	r.now = max(r.now, now)
	r.node.Tick()
	r.role.stand(r.node)
	r.reads.tick(electionTicks / 2)
	r.expiry.expire(r)
}

// Step passes another member's message to Raft. Useless messages are ignored. A message that contradicts this member's
// disk makes the next Apply fail.
//
// Errors: Invalid for a message that no member sends.
func (r *Replica) Step(m *pb.Message) error {
	if err := check(r.id, m); err != nil {
		return fault.Wrap("replica.Step", err)
	}
	if m.GetType() == pb.MsgReadIndex && !r.serves() {
		return nil // the member asks again
	}
	if r.turn.contradiction != nil {
		return nil
	}
	if err := r.turn.contradict(r, m); err != nil {
		r.turn.contradiction, r.turn.cause = err, m
		return nil
	}
	if isProof(m) {
		return nil // of an entry that this log has no more
	}
	if _, member := r.membership.peers[m.GetFrom()]; member {
		r.lastSeen[m.GetFrom()] = r.now
	}
	_ = r.node.Step(m) // a useless message, no failure
	return nil
}

// serves reports whether this member can begin a round for another member. A follower would forward the
// question under the asker's id, which the transport forbids.
func (r *Replica) serves() bool {
	return r.role.promoted && r.node.BasicStatus().RaftState == raft.StateLeader
}

// Restore passes the leader's snapshot with its state to Raft. The storage must contain the snapshot already;
// see raftlog.Write and Read.
//
// Errors: Invalid.
func (r *Replica) Restore(m *pb.Message, machine *machine.Machine) error {
	const op = "replica.Restore"
	meta := m.GetSnapshot().GetMetadata()
	switch {
	case m.GetType() != pb.MsgSnap || m.GetTo() != r.id || m.GetFrom() == 0 || m.GetFrom() == r.id:
		return fault.Wrap(op, fault.Invalidf("message", nil, "not a snapshot for this member"))
	case meta.GetIndex() == 0 || meta.GetTerm() == 0 || meta.GetTerm() > m.GetTerm() || machine == nil:
		return fault.Wrap(op, fault.Invalidf("snapshot", nil, "is not whole"))
	case len(m.GetContext()) != sumSize:
		return fault.Wrap(op, fault.Invalidf("context", len(m.GetContext()), "needs the checksum of the log"))
	}
	if _, err := newMembership(m.GetSnapshot()); err != nil {
		return fault.Wrap(op, err)
	}
	if r.turn.contradiction != nil {
		return nil
	}
	if err := r.turn.contradict(r, m); err != nil {
		r.turn.contradiction, r.turn.cause = err, m
		return nil
	}
	before := r.node.BasicStatus().GetCommit()
	_ = r.node.Step(m)
	if r.node.BasicStatus().GetCommit() > before { // else Raft refused it
		r.turn.arrived = append(r.turn.arrived, arrival{position{meta.GetIndex(), meta.GetTerm()}, machine, sumOf(m)})
	}
	return nil
}

// SnapshotSent reports the end of a snapshot transfer, once for each MsgSnap.
func (r *Replica) SnapshotSent(id uint64, ok bool) {
	status := raft.SnapshotFinish
	if !ok {
		status = raft.SnapshotFailure
	}
	r.node.ReportSnapshot(id, status)
}

// Ready reports whether Prepare, Apply and Persist have work.
func (r *Replica) Ready() bool {
	return r.turn.contradiction != nil || len(r.proposals.staged) > 0 || len(r.turn.out.Answers) > 0 || r.proposals.change.id != 0 && r.proposals.change.term == 0 ||
		r.reads.canBegin(r) || r.node.HasReady() || r.turn.commitDue(r.now) || r.turn.released
}

const (
	HoldFor     = time.Millisecond // from the beginning of Holds to Release
	denseWithin = 10 * HoldFor     // between a commit index and the next entries: proposals follow each other
)

// Holds reports whether messages wait for Release: appends without entries, which tell members a commit index. While proposals
// follow each other the next entries tell it too, so each is kept until then, or until the owner releases it. It is not kept if
// the last entries came later than denseWithin. One precedes the answer to a member's reader, who waits for that index.
func (r *Replica) Holds() bool { return len(r.turn.held) > 0 && !r.turn.released }

// Release lets the next Prepare return the messages of Holds.
func (r *Replica) Release() { r.turn.released = len(r.turn.held) > 0 }

// commitRest is how long a commit index waits for entries to be written with. It is evidence after a restart: a member must
// not lose entries that it knows to be committed, whoever leads then; see contradict.
const commitRest = 500 * time.Millisecond

// commitDue reports whether a commit index has waited long enough.
func (t *turn) commitDue(now time.Duration) bool {
	return t.unsaved != nil && now-t.since >= commitRest
}

// Prepare begins a turn and returns the messages that may leave before the disk write. Apply and Persist must
// follow.
func (r *Replica) Prepare(now time.Duration) []*pb.Message {
	r.now = max(r.now, now)
	if r.turn.contradiction != nil {
		return r.turn.accuse(r)
	}
	r.proposals.propose(r)
	r.reads.beginRound(r)
	r.turn.ready = r.node.Ready()
	r.observe()
	r.proposals.settleChange(r)
	return r.turn.withSums(r, r.turn.early(r.now))
}

// early returns the messages that leave before the disk write. Acknowledgements and votes promise durable state. A candidate also
// writes its term before it asks for votes: not required by the algorithm, but simpler.
func (t *turn) early(now time.Duration) (some []*pb.Message) {
	for i, m := range t.ready.Messages {
		held, to := t.held[m.GetTo()], m.GetTo()
		switch m.GetType() {
		case pb.MsgApp:
			if len(m.GetEntries()) == 0 {
				t.held[to], t.told = m, now
				continue
			}
			delete(t.held, to)
			t.dense = now-t.told < denseWithin
		case pb.MsgSnap:
			delete(t.held, to)
		case pb.MsgReadIndexResp:
			if held != nil {
				some = append(some, held)
				delete(t.held, to)
			}
		case pb.MsgHeartbeat, pb.MsgHeartbeatResp, pb.MsgReadIndex, pb.MsgTimeoutNow:
			if t.superseded(i) {
				continue
			}
		default:
			continue
		}
		some = append(some, m)
	}
	if t.released {
		for _, to := range sortedKeys(t.held) {
			some = append(some, t.held[to])
		}
		clear(t.held)
	}
	t.released = len(t.held) > 0 && !t.dense
	return some
}

// late returns the messages that leave after the disk write.
func (t *turn) late() (some []*pb.Message) {
	for i, m := range t.ready.Messages {
		switch m.GetType() {
		case pb.MsgApp, pb.MsgSnap, pb.MsgHeartbeat, pb.MsgHeartbeatResp, pb.MsgReadIndex, pb.MsgReadIndexResp, pb.MsgTimeoutNow:
		default:
			if !t.superseded(i) {
				some = append(some, m)
			}
		}
	}
	return some
}

// superseded reports whether a later message of the turn says all that the i-th says. Raft takes a loss of the earlier one.
func (t *turn) superseded(i int) bool {
	m := t.ready.Messages[i]
	return slices.ContainsFunc(t.ready.Messages[i+1:], func(later *pb.Message) bool {
		if later.GetType() != m.GetType() || later.GetTo() != m.GetTo() || later.GetTerm() != m.GetTerm() {
			return false
		}
		switch m.GetType() {
		case pb.MsgAppResp:
			return !m.GetReject() && !later.GetReject() && later.GetIndex() >= m.GetIndex()
		case pb.MsgHeartbeat, pb.MsgHeartbeatResp: // the confirmation of a round confirms all earlier rounds
			return later.GetCommit() >= m.GetCommit() && (len(m.GetContext()) == 0 || len(later.GetContext()) > 0)
		default:
			return false
		}
	})
}

// observe adopts Raft's present role.
func (r *Replica) observe() {
	was := r.role
	if soft := r.turn.ready.SoftState; soft != nil {
		r.role.leader, r.role.leads = soft.Lead, soft.RaftState == raft.StateLeader
	}
	if hard := r.turn.ready.HardState; hard != nil {
		r.role.term = hard.GetTerm()
	}
	if !r.role.leads || r.role.term != was.term {
		r.role.promoted = false
		if was.leads {
			r.demote()
		}
		clear(r.turn.held)
		r.turn.released = false
	}
	if r.role.leader != was.leader || r.role.term != was.term {
		r.reads.again(func(*round) bool { return true }) // the leader of these rounds is gone
	}
}

// Apply applies committed entries and returns the answers. The Machine must not be read meanwhile.
//
// Errors, which must end the member: Unsupported or Invalid for an entry unknown to this version, Internal.
func (r *Replica) Apply(now time.Duration) (Output, error) {
	const op = "replica.Apply"
	r.now = max(r.now, now)
	if r.turn.contradiction != nil {
		return Output{}, fault.Wrap(op, r.turn.contradiction)
	}
	if snap := r.turn.ready.Snapshot; !raft.IsEmptySnap(snap) {
		if err := r.turn.install(r, snap); err != nil {
			return Output{}, fault.Wrap(op, err)
		}
	}
	for _, e := range r.turn.ready.CommittedEntries {
		if err := r.turn.apply(r, e); err != nil {
			return Output{}, fault.Wrap(op, err)
		}
	}
	r.reads.confirm(r.turn.ready.ReadStates)
	r.reads.finishRounds(r)
	r.snapshots.takeImage(r)
	out := r.turn.out
	r.turn.out, r.turn.arrived = Output{}, nil
	return out, nil
}

// install replaces the state by the one of the leader's snapshot.
func (t *turn) install(r *Replica, snap *pb.Snapshot) error {
	at := position{snap.GetMetadata().GetIndex(), snap.GetMetadata().GetTerm()}
	which := slices.IndexFunc(t.arrived, func(a arrival) bool { return a.position == at })
	if which < 0 {
		return fault.New("", fault.Internal, "the state of the snapshot at %d did not come with it", at.index)
	}
	membership, err := newMembership(snap)
	if err != nil {
		return err
	}
	r.machine, r.applied, r.membership = t.arrived[which].machine, at, membership
	if r.leaders, err = leadersOf(snap); err != nil {
		return err
	}
	t.installed = t.arrived[which].sum
	r.snapshots.index, r.snapshots.previous, r.snapshots.bytes = at.index, at.index, 0
	t.out.Restored, t.out.Reconfigured = true, true
	return nil
}

func (t *turn) apply(r *Replica, e *pb.Entry) error {
	switch {
	case e.GetType() == pb.EntryConfChangeV2:
		if err := r.turn.reconfigure(r, e); err != nil {
			return err
		}
	case e.GetType() != pb.EntryNormal:
		return fault.New("", fault.Unsupported, "entry %d is of type %s", e.GetIndex(), e.GetType())
	case len(e.GetData()) > 0:
		if err := r.turn.execute(r, e); err != nil {
			return err
		}
	default:
		t.out.Checkpoint = &Checkpoint{Index: e.GetIndex(), Term: e.GetTerm(), State: r.machine.Image()}
	}
	r.applied = position{e.GetIndex(), e.GetTerm()}
	r.snapshots.bytes += uint64(len(e.GetData()))
	if r.role.leads && !r.role.promoted && e.GetTerm() == r.role.term {
		r.role.promoted = true
		r.lessor.Promote(r.now, r.role.term, r.machine.Leases())
	}
	return nil
}

// execute applies a command and answers its proposer here.
func (t *turn) execute(r *Replica, e *pb.Entry) error {
	if len(e.GetData()) < entryHead {
		return fault.New("", fault.Invalid, "entry %d is cut off", e.GetIndex())
	}
	if err := r.leaders.note(leadership{e.GetTerm(), binary.BigEndian.Uint64(e.GetData()[8:]), e.GetIndex()}); err != nil {
		return err
	}
	id := binary.BigEndian.Uint64(e.GetData())
	cmd, err := r.config.Features.Decode(e.GetData()[entryHead:], r.machine.Level())
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
	if term, ok := r.proposals.pending[id]; ok && term == e.GetTerm() {
		delete(r.proposals.pending, id)
		if id&internal != 0 {
			r.expiry.again(r, id)
		} else {
			r.answer(Answer{ID: id, Result: result})
		}
	}
	return nil
}

// reconfigure applies a configuration change, or the end of a joint configuration.
func (t *turn) reconfigure(r *Replica, e *pb.Entry) error {
	cc := new(pb.ConfChangeV2)
	if err := proto.Unmarshal(e.GetData(), cc); err != nil {
		return fault.As("", fault.Invalid, err)
	}
	id, members, err := named(cc)
	if err != nil {
		return err
	}
	r.membership.change(r.node.ApplyConfChange(cc), members)
	maps.DeleteFunc(r.lastSeen, func(id uint64, _ time.Duration) bool { return r.membership.peers[id] == "" })
	t.out.Reconfigured = true
	if len(cc.GetChanges()) > 0 {
		r.snapshots.joined = e.GetIndex()
		r.storage.Require(e.GetIndex())
	}
	c := &r.proposals.change
	if c.id != 0 && (c.joint || c.id == id && c.term == e.GetTerm()) {
		if c.joint = r.membership.joint(); !c.joint {
			r.answer(Answer{ID: c.id})
			*c = changing{}
		}
	}
	return nil
}

// Persist ends a turn: it writes the durable state and returns the messages that promise it.
//
// Errors: Internal; the process must end.
func (r *Replica) Persist() ([]*pb.Message, error) {
	const op = "replica.Persist"
	rd := &r.turn.ready
	if rd.HardState != nil {
		if r.turn.unsaved == nil {
			r.turn.since = r.now
		}
		r.turn.unsaved = rd.HardState
	}
	if !raft.IsEmptySnap(rd.Snapshot) {
		if err := r.storage.Restore(rd.Snapshot, r.turn.unsaved, r.turn.installed); err != nil {
			return nil, fault.Wrap(op, err)
		}
	}
	// A commit index waits for the next entries, for which Raft needs it no sooner.
	if rest := r.turn.commitDue(r.now); len(rd.Entries) > 0 || rd.MustSync || rest {
		if err := r.storage.Save(r.turn.unsaved, rd.Entries, rd.MustSync || rest); err != nil {
			return nil, fault.Wrap(op, err)
		}
		r.turn.unsaved = nil
	}
	late := r.turn.late()
	r.node.Advance(*rd)
	r.turn.ready = raft.Ready{}
	return late, nil
}
