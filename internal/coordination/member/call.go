package member

import (
	"context"
	"slices"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// call puts a request to the loop and waits for its answer.
func (m *Member) call(ctx context.Context, op string, put func(*replica.Replica, uint64)) (replica.Answer, error) {
	answer := make(reply, 1)
	select {
	case m.requests <- request{put, answer}:
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

// Propose has a command applied by the group, as its leader, and gives what it came to; whether the
// state refused it is in the result.
//
// Errors: Unavailable, wrapping *replica.NotLeader, which says who leads and whether the command
// may yet be applied; LimitReached when too much waits; TooLarge, Invalid for the command; Timeout,
// Canceled and Unavailable without NotLeader, when it may be applied as well.
func (m *Member) Propose(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	const op = "member.Propose"
	packed, err := replica.Pack(cmd)
	if err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	a, err := m.call(ctx, op, func(r *replica.Replica, id uint64) { r.Propose(id, packed) })
	return a.Result, a.Header, err
}

// ProposePiggyback is Propose for a command whose result is not urgent: it takes part in the next turn
// that somebody else needs, and gets one of its own after Linger. Errors: as Propose.
func (m *Member) ProposePiggyback(ctx context.Context, cmd coord.Command) (coord.Result, coord.Header, error) {
	const op = "member.ProposeAlong"
	packed, err := replica.Pack(cmd)
	if err != nil {
		return coord.Result{}, coord.Header{}, fault.Wrap(op, err)
	}
	answer, put := make(reply, 1), func(r *replica.Replica, id uint64) { r.Propose(id, packed) }
	var a replica.Answer
	if m.piggyback.add(request{put, answer}) {
		a, err = m.await(ctx, op, answer)
	} else {
		a, err = m.call(ctx, op, put)
	}
	return a.Result, a.Header, err
}

// Barrier waits until the state here has all that any member had answered before the call. All
// who wait share the work. While there is no leader it waits for one.
//
// Errors: Timeout, Canceled, Unavailable, LimitReached.
func (m *Member) Barrier(ctx context.Context) (coord.Header, error) {
	const op = "member.Barrier"
	together := m.barriers.join()
	select {
	case <-together.done:
		return together.answer.Header, fault.Wrap(op, together.answer.Err)
	case <-ctx.Done():
		return coord.Header{}, fault.Wrap(op, ctx.Err())
	case <-m.done:
		return coord.Header{}, fault.Wrap(op, m.ended())
	}
}

// KeepAlive renews an owner's leases, on the leader, and answers each in order.
//
// Errors: Unavailable, wrapping *replica.NotLeader; LimitReached also for more than
// coord.MaxKeepAlive leases; Timeout, Canceled.
func (m *Member) KeepAlive(ctx context.Context, owner string, ids []coord.LeaseID) ([]coord.Renewal, coord.Header, error) {
	const op = "member.KeepAlive"
	if len(ids) > coord.MaxKeepAlive {
		return nil, coord.Header{}, fault.New(op, fault.LimitReached, "%d leases at once, at most %d", len(ids), coord.MaxKeepAlive)
	}
	ids = slices.Clone(ids) // the call may end before the loop has looked at them
	a, err := m.call(ctx, op, func(r *replica.Replica, id uint64) { r.KeepAlive(id, owner, ids) })
	return a.Renewals, a.Header, err
}

// Change makes a change of the configuration and waits until it is in force.
//
// Errors: those of replica.Change; Timeout, Canceled.
func (m *Member) Change(ctx context.Context, c replica.Change) error {
	_, err := m.call(ctx, "member.Change", func(r *replica.Replica, id uint64) { r.Change(id, c) })
	return err
}

// Transfer hands the leadership to another voter, and waits until that one has it. Raft tries for
// an election timeout; a voter that was a learner a moment ago may need to be asked again.
//
// Errors: those of replica.Transfer; Unavailable when it did not happen; Timeout, Canceled.
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

// awaitLeader waits until a member leads, as long as Raft tries to make it.
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

// View reads the state. Applying waits meanwhile: read must be short, must not block, and must not take copies
// (Machine.View, Image, Snapshot), which are no mere reads; see Keyspace.
func (m *Member) View(read func(*machine.Machine)) coord.Header {
	m.state.RLock()
	defer m.state.RUnlock()
	read(m.replica.Machine())
	return m.header
}

// Keyspace takes a copy of the keys as they are now, for long reads. It costs little.
func (m *Member) Keyspace() (*machine.Keyspace, coord.Header) {
	m.state.Lock()
	defer m.state.Unlock()
	return m.replica.Machine().View(), m.header
}

// Remaining is the time that a lease has left on this member's clock; false when it is not the
// leader, or there is no such lease.
func (m *Member) Remaining(id coord.LeaseID) (time.Duration, bool) {
	m.state.RLock()
	defer m.state.RUnlock()
	return m.replica.Remaining(m.config.Now(), id)
}

// Status tells how the member stood at its last tick or change. The Members are shared: read only.
func (m *Member) Status() replica.Status { return *m.status.Load() }

// Members of the group, as of Status.
func (m *Member) Members() []replica.Member {
	var all []replica.Member
	for _, member := range m.status.Load().Members {
		all = append(all, member.Member)
	}
	return all
}

// Peer gives the peer id of a member of the group.
func (m *Member) Peer(member uint64) (string, bool) {
	for _, known := range m.status.Load().Members {
		if known.ID == member {
			return known.Peer, true
		}
	}
	return "", false
}

// Changed is closed at the next change of the leader, the term or the members. Ask for it before
// looking at Status.
func (m *Member) Changed() <-chan struct{} { return m.change.wait() }

// Receive takes a message of another member, when there is room. A snapshot's file must be in
// the storage already; its state is read here.
func (m *Member) Receive(message *pb.Message) {
	a := arrival{message: message}
	if message.GetType() == pb.MsgSnap {
		m.restoring.Lock()
		defer m.restoring.Unlock()
		machine, err := replica.Read(m.storage, message.GetSnapshot())
		if err != nil {
			m.config.Logger.Warn("the leader's snapshot cannot be read", "error", err)
			return
		}
		a.machine = machine
	}
	select {
	case m.messages <- a:
	case <-m.done:
	}
}

// Unreachable notes that messages to a member were dropped.
func (m *Member) Unreachable(member uint64) {
	m.post(func(r *replica.Replica) error { r.Unreachable(member); return nil })
}

// SnapshotSent notes how the sending of a snapshot ended, once for each.
func (m *Member) SnapshotSent(member uint64, ok bool) {
	m.post(func(r *replica.Replica) error { r.SnapshotSent(member, ok); return nil })
}
