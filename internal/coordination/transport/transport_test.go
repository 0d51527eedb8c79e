package transport

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Every type that Raft sends arrives unchanged; each stream keeps its order.
func TestMessagesArrive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 3, nil)
		kinds := []raftpb.MessageType{
			raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp, raftpb.MsgAppResp,
			raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgReadIndex, raftpb.MsgReadIndexResp, raftpb.MsgTimeoutNow,
		}
		var sent []*raftpb.Message
		for i, kind := range kinds {
			m := message(kind, 1, 2)
			m.Context, m.Index = []byte{byte(i)}, new(uint64(i))
			sent = append(sent, m, appending(1, 2, uint64(i), 300_000))
		}
		var clones []*raftpb.Message
		for _, m := range sent {
			clones = append(clones, proto.CloneOf(m))
		}
		w.members[0].Send(sent)
		w.members[2].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 3, 2)})
		settle(5 * time.Second)

		lanes := map[string][]*raftpb.Message{}
		key := func(m *raftpb.Message) string {
			lane, _ := kindOf(m.GetType())
			return nameOf(lane) + string(rune('0'+m.GetFrom()))
		}
		for _, m := range w.members[1].take() {
			lanes[key(m)] = append(lanes[key(m)], m)
		}
		require.Len(t, lanes["control3"], 1)
		for _, m := range clones {
			got := lanes[key(m)]
			require.NotEmpty(t, got, "%v is missing", m.GetType())
			require.True(t, proto.Equal(m, got[0]), "want %v, got %v", m, got[0])
			lanes[key(m)] = got[1:]
		}
		require.Empty(t, lanes["control1"])
		require.Empty(t, lanes["append1"])
		require.Empty(t, w.members[0].take())
		require.Empty(t, w.members[2].take())
		require.Equal(t, len(kinds), w.members[0].counts.of("sent.control"))
		require.Equal(t, len(kinds), w.members[1].counts.of("received.append"))
		require.Zero(t, w.members[0].lost())
	})
}

// Messages to itself, of another member, or to an unknown one are dropped and counted.
func TestSendRefusesWhatIsNotRaftToOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		m := w.members[0]
		m.Send([]*raftpb.Message{
			message(raftpb.MsgHup, 1, 2), message(raftpb.MsgProp, 1, 2), message(raftpb.MsgStorageAppend, 1, 2),
			message(raftpb.MsgTransferLeader, 1, 2), message(raftpb.MsgHeartbeat, 2, 1), message(raftpb.MsgHeartbeat, 1, 1),
			message(raftpb.MsgHeartbeat, 1, 99), message(raftpb.MsgSnap, 1, 99), {},
		})
		settle(time.Second)
		require.Equal(t, 5, m.counts.of("dropped.none.unfit"))
		require.Equal(t, 2, m.counts.of("dropped.control.unfit"))
		require.Equal(t, 1, m.counts.of("dropped.control.unknown"))
		require.Equal(t, []bool{false}, m.sent())
		require.Empty(t, w.members[1].take())

		require.NoError(t, m.Close())
		m.Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2), snapshotOf(1, 2, nil)})
		require.Equal(t, 1, m.counts.of("dropped.control.closed"))
		require.Equal(t, 1, m.counts.of("dropped.snapshot.closed"))
		require.NoError(t, m.Close())
	})
}

// A member that does not read costs the sender a bounded queue and no time; afterwards it receives again.
func TestSlowReader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, func(i int, m *member, c *Config) {
			c.Limits.AppendBytes = 4 << 20
			if i == 1 {
				m.gate = make(chan struct{})
			}
		})
		slow := w.members[1]
		t.Cleanup(func() { close(slow.gate) })
		const n, size = 1000, 64 << 10
		begin := time.Now()
		for i := range n {
			w.members[0].Send([]*raftpb.Message{appending(1, 2, uint64(i), size)})
		}
		require.Zero(t, time.Since(begin), "Send waits for nothing")
		require.LessOrEqual(t, n-w.members[0].counts.of("dropped.append.full"), 2*(4<<20)/size+1)
		settle(time.Minute)
		require.Empty(t, slow.take())
		require.Positive(t, w.members[0].lost())
		require.LessOrEqual(t, w.members[0].counts.of("sent.append"), n)

		stop := make(chan struct{})
		go func() {
			for {
				select {
				case slow.gate <- struct{}{}:
				case <-stop:
					return
				}
			}
		}()
		t.Cleanup(func() { close(stop) })
		settle(20 * time.Second) // messages in flight, some lost
		slow.take()
		for i := range 10 {
			w.members[0].Send([]*raftpb.Message{appending(1, 2, uint64(i), 10)})
		}
		settle(2 * time.Second)
		require.Len(t, slow.take(), 10)
	})
}

// A member is reached soon after its return, however long its absence.
func TestMemberComesBack(t *testing.T) {
	for name, away := range map[string]time.Duration{"short": 2 * time.Second, "longer": 20 * time.Second, "long": 3 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newCluster(t, 2, nil)
				beat := func() {
					w.members[0].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2), appending(1, 2, 3, 100)})
				}
				beat()
				settle(time.Second)
				require.Len(t, w.members[1].take(), 2)

				w.wire.cut.Store(true)
				for range int(away / (200 * time.Millisecond)) {
					beat()
					settle(200 * time.Millisecond)
				}
				if away > 10*time.Second {
					require.Positive(t, w.members[0].lost())
				}
				w.wire.cut.Store(false)
				w.members[1].take()
				begin := time.Now()
				for len(w.members[1].take()) == 0 {
					beat()
					settle(50 * time.Millisecond)
					require.Less(t, time.Since(begin), 3*time.Second, "in virtual time")
				}
				t.Logf("reached %v after it was back", time.Since(begin))
			})
		})
	}
}

// An unreachable member is dialled for each message, and for none without one.
func TestIdleLaneDoesNotDial(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		w.wire.cut.Store(true)
		for range 3 {
			w.members[0].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)})
			settle(time.Minute)
		}
		require.Equal(t, 3, w.members[0].lost())
		require.Equal(t, 3, w.members[0].counts.of("dropped.control.unreachable"))
	})
}

// A removed member keeps no stream in either direction, and no protected connection.
func TestRecheckEndsStreamsOfTheRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 3, nil)
		one, two := w.members[0], w.members[1]
		exchange := func() {
			one.Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2), appending(1, 2, 1, 10), message(raftpb.MsgHeartbeat, 1, 3)})
			two.Send([]*raftpb.Message{message(raftpb.MsgHeartbeatResp, 2, 1)})
			settle(2 * time.Second)
		}
		exchange()
		require.Len(t, one.take(), 1)
		require.Len(t, two.take(), 2)
		require.True(t, one.host.ConnManager().IsProtected(two.host.ID(), tag))

		w.group.set(2, "")
		one.Recheck()
		two.take()
		exchange()
		require.Empty(t, one.take())
		require.Empty(t, two.take())
		require.Len(t, w.members[2].take(), 2)
		require.Equal(t, 1, one.counts.of("refused.removed"))
		require.Equal(t, 2, one.counts.of("dropped.control.unknown")+one.counts.of("dropped.append.unknown"))
		require.False(t, one.host.ConnManager().IsProtected(two.host.ID(), tag))
		require.True(t, one.host.ConnManager().IsProtected(w.members[2].host.ID(), tag))

		w.group.set(2, two.host.ID())
		one.Recheck()
		exchange()
		require.Len(t, one.take(), 1)
		require.Len(t, two.take(), 2)

		require.NoError(t, one.Close())
		require.False(t, one.host.ConnManager().IsProtected(w.members[2].host.ID(), tag))
	})
}

// A raft id that moves to another peer takes its streams along.
func TestMemberMovesToAnotherPeer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		one, two := w.members[0], w.members[1]
		two.Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 2, 1)})
		settle(time.Second)
		require.Len(t, one.take(), 1)

		w.group.set(2, w.stranger.ID())
		one.Recheck()
		moved := w.start(t, w.stranger, 2, func(*member, *Config) {})
		two.Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 2, 1)})
		moved.Send([]*raftpb.Message{appending(2, 1, 5, 1)})
		one.Send([]*raftpb.Message{message(raftpb.MsgHeartbeatResp, 1, 2)})
		settle(2 * time.Second)
		got := one.take()
		require.Len(t, got, 1)
		require.Equal(t, raftpb.MsgApp, got[0].GetType())
		require.Len(t, moved.take(), 1)
		require.Empty(t, two.take())
	})
}

// A member learns that another one closed its last connection, but not of a network that carries nothing.
func TestGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 3, nil)
		heard := func() []uint64 {
			m := w.members[0]
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.gone
		}
		w.members[0].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)})
		settle(time.Second)
		w.wire.cut.Store(true)
		settle(time.Second)
		require.Empty(t, heard(), "a cut closes nothing")
		w.wire.cut.Store(false)
		settle(time.Second)
		require.NoError(t, w.members[2].host.Close())
		settle(time.Second)
		require.Empty(t, heard(), "member 3 had no stream")
		require.NoError(t, w.members[1].Transport.Close())
		require.NoError(t, w.members[1].host.Close())
		settle(time.Second)
		require.Equal(t, []uint64{2}, heard())
	})
}
