package replica_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

func TestElectsAndApplies(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	for i := range 20 {
		require.NoError(t, l.do(put(fmt.Sprint("key", i), "v")).Err)
	}
	result := l.do(&apiv1.LeaseRevokeRequest{Id: 99})
	require.ErrorIs(t, result.Err, fault.NotFound, "the state's refusal is a result")
	c.agree()
	require.Equal(t, coord.Revision(21), l.Machine().Revision())
}

// Who is alone serves at once, and after a restart has all that it answered.
func TestAlone(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.settle()
	l := c.nodes[0]
	require.True(t, l.Status().Promoted, "without a tick")
	for i := range 5 {
		l.do(put(fmt.Sprint("key", i), "v"))
	}
	l.crash()
	l.restart()
	read := c.id()
	l.Read(read)
	require.Equal(t, coord.Revision(6), l.await(read).Header.Revision)
}

func TestFollowersRefuseAndRead(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	var follower *node
	for _, n := range c.nodes {
		if n != l {
			follower = n
		}
	}
	id := follower.propose(coordtest.Command("", put("a", "b")))
	a := follower.await(id)
	require.ErrorIs(t, a.Err, fault.Unavailable)
	var not *replica.NotLeader
	require.ErrorAs(t, a.Err, &not)
	require.Equal(t, l.member(), not.Leader)
	require.False(t, not.Maybe)
	require.ErrorIs(t, follower.Transfer(l.ID()), fault.Unavailable)

	l.do(put("a", "b"))
	read := c.id()
	follower.Read(read)
	require.Equal(t, coord.Revision(2), follower.await(read).Header.Revision)
	keep := c.id()
	follower.KeepAlive(keep, "owner", []coord.LeaseID{1})
	require.ErrorIs(t, follower.await(keep).Err, fault.Unavailable)
}

// A leader cut off from the others answers no read, confirms no keepalive, and says of its
// proposals that they may be applied; the others go on.
func TestDeposed(t *testing.T) {
	c := newCluster(t, 3, nil)
	old := c.leader()
	lease := old.do(&apiv1.LeaseGrantRequest{TtlMs: 10_000}).Lease
	c.isolate(old, true)
	read, keep := c.id(), c.id()
	proposed := old.propose(coordtest.Command("", put("lost", "x")))
	old.Read(read)
	old.KeepAlive(keep, "owner", []coord.LeaseID{lease})
	c.until("another leader", func() bool { return c.leader() != old })
	c.leader().do(put("kept", "y"))
	require.NotContains(t, old.answers, read)
	var not *replica.NotLeader
	require.ErrorAs(t, old.await(keep).Err, &not)
	require.ErrorAs(t, old.await(proposed).Err, &not)
	require.True(t, not.Maybe)

	c.isolate(old, false)
	require.Equal(t, coord.Revision(2), old.await(read).Header.Revision, "confirmed by the new leader")
	_, there := old.Machine().Get("lost")
	require.False(t, there)
	c.agree()
}

func TestCatchesUpBySnapshot(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	slow := c.nodes[0]
	if slow == l {
		slow = c.nodes[1]
	}
	c.isolate(slow, true)
	for i := range 200 {
		l.do(put(fmt.Sprint("key", i%50), fmt.Sprint(i)))
	}
	require.Greater(t, l.Status().Snapshot, uint64(100))
	c.isolate(slow, false)
	c.agree()
	require.Less(t, len(slow.applied), 100, "the rest came with the snapshot")
	slow.crash()
	slow.restart()
	c.agree()
}

// TestTwoSnapshotsInOneTurn: the older one is of no use, whichever comes first.
func TestTwoSnapshotsInOneTurn(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		c := newCluster(t, 3, nil)
		l := c.leader()
		slow := c.nodes[0]
		if slow == l {
			slow = c.nodes[1]
		}
		c.hold = true
		for len(c.held) < 2 {
			c.isolate(slow, true)
			for range 200 {
				l.do(put("key", fmt.Sprint(len(c.held))))
			}
			c.isolate(slow, false)
			held := len(c.held)
			c.until("a snapshot is sent", func() bool { return len(c.held) > held })
		}
		for _, n := range order {
			c.held[n]()
		}
		c.hold = false
		c.agree()
		require.Less(t, len(slow.applied), 200, "the rest came with a snapshot")
	}
}

// Leases end when nobody renews them, not before, and the one that is renewed lives on.
func TestLeases(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	dies, lives := l.do(&apiv1.LeaseGrantRequest{TtlMs: 5_000}).Lease, l.do(&apiv1.LeaseGrantRequest{TtlMs: 5_000}).Lease
	other := l.do(&apiv1.LeaseGrantRequest{TtlMs: 5_000}).Lease
	for i := range 12 {
		c.run(400 * time.Millisecond)
		keep := c.id()
		l.KeepAlive(keep, "owner", []coord.LeaseID{lives, 999})
		a := l.await(keep)
		require.NoError(t, a.Err)
		require.Equal(t, []machine.Renewal{{ID: lives, TTL: 5_000}, {ID: 999}}, a.Renewals)
		_, there := l.Machine().Lease(dies)
		require.True(t, there, "step %d", i)
	}
	stranger := c.id()
	l.KeepAlive(stranger, "somebody else", []coord.LeaseID{other})
	require.Equal(t, []machine.Renewal{{ID: other}}, l.await(stranger).Renewals)
	c.run(time.Second)
	_, there := l.Machine().Lease(dies)
	require.False(t, there)
	_, there = l.Machine().Lease(lives)
	require.True(t, there)
}

// A keepalive that meets the end of its lease on the way to the log waits for the outcome.
func TestKeepAliveMeetsExpiry(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	lease := l.do(&apiv1.LeaseGrantRequest{TtlMs: 5_000}).Lease
	c.run(4900 * time.Millisecond)
	keep := c.id()
	c.now += 10 * time.Second
	l.Tick(c.now) // proposes the end
	l.KeepAlive(keep, "owner", []coord.LeaseID{lease})
	for range 3 { // the round is confirmed before the entry: its acknowledgements need no disk
		l.turn()
		wires := c.wires
		c.wires = nil
		for _, m := range wires {
			if m.GetType() == pb.MsgApp || m.GetType() == pb.MsgAppResp {
				c.wires = append(c.wires, m)
			} else {
				c.deliver(m)
			}
		}
		for _, n := range c.nodes {
			if n != l {
				n.turn()
			}
		}
	}
	require.NotContains(t, l.answers, keep)
	require.Equal(t, []machine.Renewal{{ID: lease}}, l.await(keep).Renewals)
	c.agree()
}

// A new leader gives every lease its whole time again, and measures by itself.
func TestLeasesOutliveTheLeader(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	lease := l.do(&apiv1.LeaseGrantRequest{TtlMs: 5_000}).Lease
	c.run(4 * time.Second)
	l.crash()
	began := c.now
	next := c.leader()
	for c.now < began+5*time.Second {
		_, there := next.Machine().Lease(lease)
		require.True(t, there)
		c.run(tick)
	}
	c.until("the end of the lease", func() bool { _, there := next.Machine().Lease(lease); return !there })
	l.restart()
	c.agree()
}

func TestForgetsIdleClients(t *testing.T) {
	c := newCluster(t, 3, func(c *replica.Config) { c.ClientIdle = 10 * time.Second })
	l := c.leader()
	l.do(&apiv1.OpenClientRequest{})
	c.run(9 * time.Second)
	require.Equal(t, 1, l.Machine().Clients())
	c.run(12 * time.Second)
	require.Equal(t, 0, l.Machine().Clients())
	c.agree()
}

// A voter is replaced in one joint change by a learner that has caught up.
func TestReplaceVoter(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	for i := range 100 {
		l.do(put(fmt.Sprint("key", i), "v"))
	}
	dead := c.nodes[0]
	if dead == l {
		dead = c.nodes[1]
	}
	dead.crash()
	fresh := c.add()
	require.NoError(t, fresh.store.Bind(groupID))
	fresh.start()
	change := func(ch replica.Change) replica.Answer {
		id := c.id()
		l.Change(id, ch)
		return l.await(id)
	}
	require.ErrorIs(t, change(replica.Change{}).Err, fault.Invalid)
	require.ErrorIs(t, change(replica.Change{Remove: []uint64{77}}).Err, fault.NotFound)
	require.NoError(t, change(replica.Change{Learners: []replica.Member{fresh.member()}}).Err)
	c.until("the learner catches up", func() bool { return fresh.Machine().Image().Hash() == l.Machine().Image().Hash() })
	require.NoError(t, change(replica.Change{Voters: []replica.Member{{ID: fresh.ID()}}, Remove: []uint64{dead.store.Member()}}).Err)
	require.False(t, l.Status().Joint)
	var ids []uint64
	for _, m := range l.Status().Members {
		require.True(t, m.Voter)
		ids = append(ids, m.ID)
	}
	require.Contains(t, ids, fresh.ID())
	require.NotContains(t, ids, dead.store.Member())
	c.until("all know", func() bool { return len(fresh.Members()) == 3 })
	require.Equal(t, l.Members(), fresh.Members())

	fresh.crash()
	fresh.restart()
	c.run(time.Second)
	require.Equal(t, l.Members(), fresh.Members(), "after a restart")
}

// The peer of a lost folder returns as a learner beside its old self, and takes its vote.
func TestOnePeerOneVote(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	old := c.nodes[0]
	if old == l {
		old = c.nodes[1]
	}
	again := replica.Member{ID: 12345, Peer: old.member().Peer}
	ask := func(ch replica.Change) error {
		id := c.id()
		l.Change(id, ch)
		return l.await(id).Err
	}
	require.ErrorIs(t, ask(replica.Change{Voters: []replica.Member{again}}), fault.Exists)
	require.NoError(t, ask(replica.Change{Learners: []replica.Member{again}}))
	require.ErrorIs(t, ask(replica.Change{Voters: []replica.Member{{ID: again.ID}}}), fault.Exists)
	require.ErrorIs(t, ask(replica.Change{Learners: []replica.Member{{ID: again.ID, Peer: "another"}}}), fault.Conflict)
	require.NoError(t, ask(replica.Change{Voters: []replica.Member{{ID: again.ID}}, Remove: []uint64{old.ID()}}))
}

func TestOneChangeAtATime(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	first, second := c.id(), c.id()
	l.Change(first, replica.Change{Learners: []replica.Member{{ID: 1, Peer: "one"}}})
	l.Change(second, replica.Change{Learners: []replica.Member{{ID: 2, Peer: "two"}}})
	require.ErrorIs(t, l.await(second).Err, fault.Conflict)
	require.NoError(t, l.await(first).Err)
}

func TestTransfer(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	require.ErrorIs(t, l.Transfer(l.ID()), fault.Invalid)
	require.ErrorIs(t, l.Transfer(4711), fault.NotFound)
	to := c.nodes[0]
	if to == l {
		to = c.nodes[1]
	}
	began := c.now
	require.NoError(t, l.Transfer(to.ID()))
	c.settle()
	require.True(t, to.Status().Promoted)
	require.Equal(t, began, c.now, "without waiting")
	to.do(put("a", "b"))
}

// The same command proposed to two leaders in turn is applied once.
func TestExactlyOnce(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	client := l.do(&apiv1.OpenClientRequest{}).Client
	cmd := coordtest.Once(client, 1, coordtest.Command("owner", put("a", "b")))
	first := l.await(l.propose(cmd))
	require.NoError(t, first.Result.Err)
	l.crash()
	next := c.leader()
	second := next.await(next.propose(cmd))
	require.Equal(t, first.Result.Revision, second.Result.Revision)
	require.Equal(t, coord.Revision(2), next.Machine().Revision())
}

func TestBoundsWhatWaits(t *testing.T) {
	c := newCluster(t, 3, func(c *replica.Config) { c.Pending = 10 })
	l := c.leader()
	c.isolate(l, true)
	var last uint64
	for range 11 {
		last = l.propose(coordtest.Command("", put("a", "b")))
	}
	require.ErrorIs(t, l.await(last).Err, fault.PoolExhausted)
	read := c.id()
	l.Read(read)
	require.ErrorIs(t, l.await(read).Err, fault.PoolExhausted)
}

// TestBoundsBytesThatWait: a leader without a majority takes 64 MiB of commands, and names the pool to the next one.
func TestBoundsBytesThatWait(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	c.isolate(l, true)
	large := put("a", strings.Repeat("x", coord.MaxValue))
	for range 64 {
		l.propose(coordtest.Command("", large))
	}
	last := l.propose(coordtest.Command("", large))
	pool, share := fault.PoolOf(l.await(last).Err)
	require.Equal(t, "uncommitted", pool)
	require.False(t, share)
}

// TestRefusesMessages: a replica refuses foreign messages before they reach Raft.
// A vote is on the disk before anybody hears of it, also without an entry beside it: a crash must not give a second one.
func TestVoteSurvivesACrash(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	followers := c.followers(l)
	voter, candidate := followers[0], followers[1].ID()
	last, err := voter.store.LastIndex()
	require.NoError(t, err)
	kind, term := pb.MsgVote, l.Status().Header.Term
	require.NoError(t, voter.Step(&pb.Message{
		Type: &kind, To: new(voter.ID()), From: &candidate, Term: new(term + 1), Index: &last, LogTerm: &term, Context: []byte("CampaignTransfer"),
	}))
	c.wires = nil
	voter.turn()
	require.Len(t, c.wires, 1)
	require.Equal(t, pb.MsgVoteResp, c.wires[0].GetType())
	require.False(t, c.wires[0].GetReject())
	voter.crash()
	voter.open()
	hard, _, err := voter.store.InitialState()
	require.NoError(t, err)
	require.Equal(t, term+1, hard.GetTerm())
	require.Equal(t, candidate, hard.GetVote())
}

func TestRefusesMessages(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	from := c.nodes[0].ID()
	if c.nodes[0] == l {
		from = c.nodes[1].ID()
	}
	term := l.Status().Header.Term
	message := func(kind pb.MessageType, change func(*pb.Message)) *pb.Message {
		m := &pb.Message{Type: &kind, To: new(l.ID()), From: &from, Term: &term}
		if change != nil {
			change(m)
		}
		return m
	}
	for name, m := range map[string]*pb.Message{
		"nothing":       nil,
		"to another":    message(pb.MsgHeartbeat, func(m *pb.Message) { m.To = &from }),
		"from itself":   message(pb.MsgHeartbeat, func(m *pb.Message) { m.From = m.To }),
		"from nobody":   message(pb.MsgHeartbeat, func(m *pb.Message) { m.From = nil }),
		"a local":       message(pb.MsgHup, nil),
		"a proposal":    message(pb.MsgProp, nil),
		"a snapshot":    message(pb.MsgSnap, nil),
		"a transfer":    message(pb.MsgTransferLeader, nil),
		"no term":       message(pb.MsgHeartbeat, func(m *pb.Message) { m.Term = nil }),
		"short context": message(pb.MsgHeartbeatResp, func(m *pb.Message) { m.Context = []byte{1} }),
		"empty read":    message(pb.MsgReadIndex, nil),
		"gap": message(pb.MsgApp, func(m *pb.Message) {
			m.Index, m.LogTerm, m.Entries = new(uint64(4)), &term, []*pb.Entry{{Index: new(uint64(6)), Term: &term}}
		}),
		"future entry": message(pb.MsgApp, func(m *pb.Message) {
			m.Index, m.LogTerm, m.Entries = new(uint64(4)), &term, []*pb.Entry{{Index: new(uint64(5)), Term: new(term + 1)}}
		}),
	} {
		require.ErrorIs(t, l.Step(m), fault.Invalid, name)
	}
}

// A group under crashes and cuts loses nothing that it answered, and agrees in the end.
func TestChaos(t *testing.T) {
	c := newCluster(t, 3, nil)
	acknowledged := make(map[string]bool)
	asked := make(map[uint64]string)
	for i := range 400 {
		c.chaos()
		for _, n := range c.nodes {
			if !n.down {
				key := fmt.Sprint("key", i)
				asked[n.propose(coordtest.Command("", put(key, "v")))] = key
			}
		}
		c.run(time.Duration(1+c.random.IntN(5)) * tick)
		for _, n := range c.nodes {
			for id, a := range n.answers {
				if a.Err == nil && a.Result.Err == nil {
					acknowledged[asked[id]] = true
				}
			}
		}
	}
	clear(c.cut)
	for _, n := range c.nodes {
		if n.down {
			n.restart()
		}
	}
	l := c.leader()
	l.do(put("end", "v"))
	c.agree()
	require.Greater(t, len(acknowledged), 50)
	for key := range acknowledged {
		_, there := l.Machine().Get(key)
		require.True(t, there, key)
	}
}

// chaos does one thing to one node, with never more than one down.
func (c *cluster) chaos() {
	n := c.nodes[c.random.IntN(len(c.nodes))]
	switch c.random.IntN(12) {
	case 0:
		for _, other := range c.nodes {
			if other.down {
				return
			}
		}
		n.crash()
	case 1, 2:
		if n.down {
			n.restart()
		}
	case 3:
		c.isolate(n, true)
	case 4, 5:
		clear(c.cut)
	}
}

// TestActiveMembers: a leader that hears from its members calls none of them silent, at no moment.
func TestActiveMembers(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	silent := func() (n int) {
		for _, m := range l.Status().Members {
			if !m.Active {
				n++
			}
		}
		return n
	}
	for range 100 {
		c.run(tick)
		l.Tick(c.now) // its next look at the quorum, before the answers to it
		require.Zero(t, silent())
	}
	for _, n := range c.nodes {
		if n != l {
			c.isolate(n, true)
			break
		}
	}
	c.run(5 * time.Second)
	require.Equal(t, 1, silent())
}
