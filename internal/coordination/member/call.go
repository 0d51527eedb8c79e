package member

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// call passes a request to the loop and waits for its answer.
func (m *Member) call(ctx context.Context, op string, put func(*replica.Replica, uint64)) (replica.Answer, error) {
	answer := make(reply, 1)
	select {
	case m.inbox.requests <- request{put, answer}:
	case <-ctx.Done():
		return replica.Answer{}, fault.Wrap(op, ctx.Err())
	case <-m.done:
		return replica.Answer{}, fault.Wrap(op, m.ended())
	}
	return m.await(ctx, op, answer)
}

// await waits for an answer.
func (m *Member) await(ctx context.Context, op string, answer reply) (replica.Answer, error) {
	select {
	case a := <-answer:
		return a, fault.Wrap(op, a.Err)
	case <-ctx.Done():
		return replica.Answer{}, fault.Wrap(op, ctx.Err())
	case <-m.done:
		return replica.Answer{}, fault.Wrap(op, m.ended())
	}
}

// Propose proposes a command as the leader and returns its result, which may be a refusal by the state
// machine.
//
// Errors: Unavailable, wrapping *replica.NotLeader with the leader and whether the command may still be
// applied; PoolExhausted for too many requests; TooLarge and Invalid for the command; Timeout, Canceled, and
// Unavailable without NotLeader, after which the command may still be applied too.
func (m *Member) Propose(ctx context.Context, cmd *coordv1.Command) (machine.Result, coord.Header, error) {
	const op = "member.Propose"
	packed, err := m.config.Replica.Pack(cmd)
	if err != nil {
		return machine.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	a, err := m.call(ctx, op, func(r *replica.Replica, id uint64) { r.Propose(id, packed) })
	return a.Result, a.Header, err
}

// ProposePiggyback is Propose for a command that is not urgent: it joins the next turn of another request, or
// gets its own after Linger. Errors: as Propose.
func (m *Member) ProposePiggyback(ctx context.Context, cmd *coordv1.Command) (machine.Result, coord.Header, error) {
	const op = "member.ProposeAlong"
	packed, err := m.config.Replica.Pack(cmd)
	if err != nil {
		return machine.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	answer, put := make(reply, 1), func(r *replica.Replica, id uint64) { r.Propose(id, packed) }
	var a replica.Answer
	if m.inbox.piggyback.add(request{put, answer}) {
		a, err = m.await(ctx, op, answer)
	} else {
		a, err = m.call(ctx, op, put)
	}
	return a.Result, a.Header, err
}

// Barrier waits until the state here contains all answers of any member before the call. Concurrent calls
// share the work. It waits for a leader.
//
// Errors: Timeout, Canceled, Unavailable, PoolExhausted.
func (m *Member) Barrier(ctx context.Context) (coord.Header, error) {
	const op = "member.Barrier"
	together := m.inbox.barriers.join()
	select {
	case <-together.done:
		return together.answer.Header, fault.Wrap(op, together.answer.Err)
	case <-ctx.Done():
		return coord.Header{}, fault.Wrap(op, ctx.Err())
	case <-m.done:
		return coord.Header{}, fault.Wrap(op, m.ended())
	}
}

// KeepAlive renews an owner's leases at the leader, and answers each in order.
//
// Errors: Unavailable, wrapping *replica.NotLeader; PoolExhausted; LimitReached above coord.MaxKeepAlive leases;
// Timeout, Canceled.
func (m *Member) KeepAlive(ctx context.Context, owner string, ids []coord.LeaseID) ([]machine.Renewal, coord.Header, error) {
	const op = "member.KeepAlive"
	if len(ids) > coord.MaxKeepAlive {
		return nil, coord.Header{}, fault.New(op, fault.LimitReached, "%d leases at once, at most %d", len(ids), coord.MaxKeepAlive)
	}
	ids = slices.Clone(ids) // the call may end before the loop reads them
	a, err := m.call(ctx, op, func(r *replica.Replica, id uint64) { r.KeepAlive(id, owner, ids) })
	return a.Renewals, a.Header, err
}

// Change changes the configuration and waits for its application.
//
// Errors: as replica.Change; Timeout, Canceled.
func (m *Member) Change(ctx context.Context, c replica.Change) error {
	_, err := m.call(ctx, "member.Change", func(r *replica.Replica, id uint64) { r.Change(id, c) })
	return err
}

// Transfer hands the leadership to another voter and waits for its election. Raft tries for an election
// timeout; a recent learner may need a second attempt.
//
// Errors: as replica.Transfer; Unavailable after a failure; Timeout, Canceled.
func (m *Member) Transfer(ctx context.Context, to uint64) error {
	const op = "member.Transfer"
	for range 3 {
		begun := make(chan error, 1)
		m.post(func(r *replica.Replica) error { begun <- r.Transfer(to); return nil })
		select {
		case err := <-begun:
			if err != nil {
				return fault.Wrap(op, err)
			}
		case <-m.done:
			return fault.Wrap(op, m.ended())
		}
		if done, err := m.awaitLeader(ctx, to); done || err != nil {
			return fault.Wrap(op, err)
		}
	}
	return fault.New(op, fault.Unavailable, "member %x did not become leader", to)
}

// awaitLeader waits for the election of a member during Raft's transfer.
func (m *Member) awaitLeader(ctx context.Context, to uint64) (bool, error) {
	timer := time.NewTimer(m.config.Replica.ElectionTimeout() + 2*m.tick)
	defer timer.Stop()
	for {
		changed := m.Changed()
		if m.Status().Leader.ID == to {
			return true, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-m.done:
			return false, m.ended()
		}
	}
}

// View reads the state, and delays its changes meanwhile: read must be short and must not block or copy
// (Machine.View, Image and Snapshot write); see Keyspace.
func (m *Member) View(read func(*machine.Machine)) coord.Header {
	m.state.RLock()
	defer m.state.RUnlock()
	read(m.replica.Machine())
	return m.header
}

// Keyspace returns a cheap copy of the present keys, for long reads.
func (m *Member) Keyspace() (*machine.Keyspace, coord.Header) {
	m.state.Lock()
	defer m.state.Unlock()
	return m.replica.Machine().View(), m.header
}

// Image returns a copy of the whole state, for writing beside the member.
func (m *Member) Image() *machine.Image {
	m.state.Lock()
	defer m.state.Unlock()
	return m.replica.Machine().Image()
}

// Remaining returns the remaining time of a lease on this member's clock; false at other members than the
// leader, and for unknown leases.
func (m *Member) Remaining(id coord.LeaseID) (time.Duration, bool) {
	m.state.RLock()
	defer m.state.RUnlock()
	return m.replica.Remaining(time.Since(m.began), id)
}

// Status describes the member at its last tick or change. Callers share Members: treat them as read-only.
func (m *Member) Status() replica.Status { return *m.status.Load() }

// Members returns the members of Status.
func (m *Member) Members() []replica.Member {
	var all []replica.Member
	for _, member := range m.status.Load().Members {
		all = append(all, member.Member)
	}
	return all
}

// Peer returns the peer id of a member.
func (m *Member) Peer(member uint64) (string, bool) {
	for _, known := range m.status.Load().Members {
		if known.ID == member {
			return known.Peer, true
		}
	}
	return "", false
}

// Changed returns a channel that is closed at the next change of leader, term or members. Call it before
// Status.
func (m *Member) Changed() <-chan struct{} { return m.change.Wait() }

// Receive queues another member's message, within a bound. The storage must contain a snapshot's file already;
// its state is read here.
func (m *Member) Receive(message *pb.Message) {
	a := arrival{message: message}
	if message.GetType() == pb.MsgSnap {
		m.restoring.Lock()
		defer m.restoring.Unlock()
		machine, err := m.config.Replica.Read(message.GetSnapshot())
		if err != nil {
			m.config.Replica.Logger.Warn("the leader's snapshot cannot be read", "error", err)
			return
		}
		a.machine = machine
	}
	select {
	case m.inbox.messages <- a:
	case <-m.done:
	}
}

// Unreachable reports dropped messages to a member. gone: it has closed its last connection.
func (m *Member) Unreachable(member uint64, gone bool) {
	m.post(func(r *replica.Replica) error { r.Unreachable(member, gone); return nil })
}

// SnapshotSent reports the end of a snapshot transfer, once for each.
func (m *Member) SnapshotSent(member uint64, ok bool) {
	m.post(func(r *replica.Replica) error { r.SnapshotSent(member, ok); return nil })
}
