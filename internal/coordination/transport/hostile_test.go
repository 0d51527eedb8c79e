package transport

import (
	"encoding/binary"
	"io"
	"os"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// fakeHost is a host without peers.
type fakeHost struct{ host.Host }

// hello returns member 1's introduction to member 2.
func hello(edits ...func(*groupv1.MemberHello)) *groupv1.MemberHello {
	id := groupID()
	h := &groupv1.MemberHello{GroupId: id[:], From: 1, To: 2, Kind: groupv1.StreamKind_STREAM_KIND_APPEND, Levels: &groupv1.Levels{Min: 1, Max: 2}}
	for _, edit := range edits {
		edit(h)
	}
	return h
}

// raw opens a stream of the protocol and writes bytes.
func raw(t *testing.T, from host.Host, to peer.ID, b []byte) network.Stream {
	s, err := from.NewStream(t.Context(), to, RaftProtocol("test", groupID()))
	require.NoError(t, err)
	_, err = s.Write(b)
	require.NoError(t, err)
	return s
}

func frameOf(t *testing.T, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// enter opens an accepted stream as member 1.
func enter(t *testing.T, w *cluster, edits ...func(*groupv1.MemberHello)) network.Stream {
	s := raw(t, w.members[0].host, w.members[1].host.ID(), frameOf(t, hello(edits...)))
	welcome := new(groupv1.MemberWelcome)
	require.NoError(t, readAnswer(s, welcome))
	require.Equal(t, groupv1.HandshakeResult_HANDSHAKE_RESULT_ACCEPTED, welcome.Result)
	return s
}

// ended checks that a stream ends without another byte.
func ended(t *testing.T, s network.Stream) {
	b, err := io.ReadAll(s)
	require.Empty(t, b)
	require.Error(t, err, "reset")
}

// A false claim of membership is rejected with its reason, and changes nothing.
func TestHandshakeResults(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var unfit []string
		w := newCluster(t, 3, func(_ int, _ *member, c *Config) {
			c.Levels = func() (coord.Levels, uint32) { return coord.Levels{Min: 1, Max: 3}, 2 }
			c.WrongLevel = func(_ peer.ID, why error) { unfit = append(unfit, why.Error()) }
		})
		two := w.members[1]
		for _, tc := range []struct {
			name string
			from host.Host
			edit func(*groupv1.MemberHello)
			want groupv1.HandshakeResult
			told []uint64 // to Stranger
		}{
			{"no member", w.stranger, func(h *groupv1.MemberHello) { h.From = 9 }, groupv1.HandshakeResult_HANDSHAKE_RESULT_NOT_MEMBER, []uint64{9}},
			{"no raft id", w.stranger, func(h *groupv1.MemberHello) { h.From = 0 }, groupv1.HandshakeResult_HANDSHAKE_RESULT_NOT_MEMBER, []uint64{0}},
			{"another member's raft id", w.stranger, func(*groupv1.MemberHello) {}, groupv1.HandshakeResult_HANDSHAKE_RESULT_NOT_MEMBER, []uint64{1}},
			{"a member with another's", w.members[2].host, func(*groupv1.MemberHello) {}, groupv1.HandshakeResult_HANDSHAKE_RESULT_NOT_MEMBER, []uint64{1}},
			{"the answerer's own raft id", w.stranger, func(h *groupv1.MemberHello) { h.From = 2 }, groupv1.HandshakeResult_HANDSHAKE_RESULT_NOT_MEMBER, nil},
			{"to who was here before", w.members[0].host, func(h *groupv1.MemberHello) { h.To = 77 }, groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_MEMBER, nil},
			{"another group", w.members[0].host, func(h *groupv1.MemberHello) { h.GroupId[31]++ }, groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_GROUP, nil},
			{"no group", w.members[0].host, func(h *groupv1.MemberHello) { h.GroupId = nil }, groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_GROUP, nil},
			{"a program before the group's level", w.members[0].host, func(h *groupv1.MemberHello) { h.Levels = &groupv1.Levels{Min: 1, Max: 1} }, groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_LEVEL, nil},
			{"a program after it", w.members[0].host, func(h *groupv1.MemberHello) { h.Levels = &groupv1.Levels{Min: 3, Max: 4} }, groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_LEVEL, nil},
			{"a group of a later level", w.members[0].host, func(h *groupv1.MemberHello) { h.Level = 4 }, groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_LEVEL, nil},
			{"no levels", w.members[0].host, func(h *groupv1.MemberHello) { h.Levels = nil }, groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_LEVEL, nil},
			{"a member", w.members[0].host, func(*groupv1.MemberHello) {}, groupv1.HandshakeResult_HANDSHAKE_RESULT_ACCEPTED, nil},
		} {
			t.Log(tc.name)
			before := two.counts.of("refused." + resultName(tc.want))
			b := append(frameOf(t, hello(tc.edit)), frameOf(t, appending(1, 2, 1, 10))...)
			s := raw(t, tc.from, two.host.ID(), b)
			welcome := new(groupv1.MemberWelcome)
			require.NoError(t, readAnswer(s, welcome))
			require.Equal(t, tc.want, welcome.Result)
			id := groupID()
			require.Equal(t, id[:], welcome.GroupId)
			settle(time.Second)
			require.Equal(t, tc.told, two.strangers)
			two.strangers = nil
			if tc.want == groupv1.HandshakeResult_HANDSHAKE_RESULT_ACCEPTED {
				require.Len(t, two.take(), 1)
				continue
			}
			require.Equal(t, before+1, two.counts.of("refused."+resultName(tc.want)))
			require.Empty(t, two.take(), "nothing that was said counts")
			rest, err := io.ReadAll(s)
			require.NoError(t, err, "the stream ends in order")
			require.Empty(t, rest)
			if tc.want == groupv1.HandshakeResult_HANDSHAKE_RESULT_WRONG_LEVEL {
				require.Equal(t, []uint32{1, 3, 2}, []uint32{welcome.GetLevels().GetMin(), welcome.GetLevels().GetMax(), welcome.GetLevel()})
			}
		}
		require.Equal(t, []string{
			"the group is at feature level 2, the member supports 1: give it a program of another version",
			"the group is at feature level 2, the member supports 3 to 4: give it a program of another version",
			"the group is at feature level 4, this member supports 1 to 3: give it a program of another version",
			"the member announces no feature levels: upgrade it",
		}, unfit)
		require.Equal(t, coord.Levels{Min: 1, Max: 2}, two.Levels(1), "of the accepted handshake")
	})
}

// A rejected dialler learns the reason and does not insist.
func TestRefusedDialler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told []groupv1.HandshakeResult
		w := newCluster(t, 2, func(i int, m *member, c *Config) {
			if i == 1 {
				c.Lookup = func(uint64) (peer.ID, bool) { return "", false }
			}
			c.Refused = func(_ peer.ID, why *groupv1.MemberWelcome) {
				m.mu.Lock()
				defer m.mu.Unlock()
				told = append(told, why.Result)
			}
		})
		for range 100 {
			w.members[0].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)})
			settle(100 * time.Millisecond)
		}
		require.NotEmpty(t, told)
		require.LessOrEqual(t, len(told), 11, "once a second")
		require.Equal(t, groupv1.HandshakeResult_HANDSHAKE_RESULT_NOT_MEMBER, told[0])
		require.Equal(t, len(told), w.members[0].lost())
		require.Equal(t, len(told), w.members[1].counts.of("refused.not_member"))
		require.Len(t, w.members[1].strangers, len(told))
	})
}

// A malformed introduction ends the stream without harm to the peer's next one.
func TestGarbledHello(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		two := w.members[1]
		for name, b := range map[string][]byte{
			"too long":   binary.BigEndian.AppendUint32(nil, maxHello+1),
			"absurd":     {0xff, 0xff, 0xff, 0xff},
			"no message": {0, 0, 0, 3, 0xff, 0xff, 0xff},
			"no lane":    frameOf(t, hello(func(h *groupv1.MemberHello) { h.Kind = 0 })),
			"empty":      {0, 0, 0, 0},
		} {
			before := two.counts.of("refused.hello")
			ended(t, raw(t, w.members[0].host, two.host.ID(), b))
			require.Equal(t, before+1, two.counts.of("refused.hello"), name)
		}
		enter(t, w)
	})
}

// A stream of a kind that a later version adds is refused by name; the other streams go on.
func TestUnknownKindOfStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		two := w.members[1]
		s := raw(t, w.members[0].host, two.host.ID(), frameOf(t, hello(func(h *groupv1.MemberHello) { h.Kind = 9 })))
		welcome := new(groupv1.MemberWelcome)
		require.NoError(t, readAnswer(s, welcome))
		require.Equal(t, groupv1.HandshakeResult_HANDSHAKE_RESULT_UNKNOWN_STREAM, welcome.GetResult())
		require.Equal(t, uint32(9), welcome.GetRefusedKind())
		require.EqualError(t, &rejection{welcome}, "refused: the member does not know streams of kind 9: upgrade it")
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 1, two.counts.of("refused.unknown_stream"))
		enter(t, w)
	})
}

// A message that does not fit its stream ends the stream, and Raft never sees it.
func TestMessagesThatDoNotBelong(t *testing.T) {
	control := func(h *groupv1.MemberHello) { h.Kind = groupv1.StreamKind_STREAM_KIND_CONTROL }
	bulk := func(*groupv1.MemberHello) {}
	many := &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2))}
	for range maxEntries + 1 {
		many.Entries = append(many.Entries, &raftpb.Entry{})
	}
	for name, tc := range map[string]struct {
		lane    func(*groupv1.MemberHello)
		bytes   []byte
		refused int
	}{
		"oversized frame":          {bulk, binary.BigEndian.AppendUint32(nil, MaxFrame+1), 0},
		"oversized control frame":  {control, binary.BigEndian.AppendUint32(nil, maxControl+1), 0},
		"garbage":                  {bulk, []byte{0, 0, 0, 2, 0xff, 0xff}, 1},
		"too many entries":         {bulk, frameOf(t, many), 1},
		"from another":             {bulk, frameOf(t, appending(3, 2, 1, 1)), 1},
		"to another":               {bulk, frameOf(t, appending(1, 3, 1, 1)), 1},
		"an append on control":     {control, frameOf(t, appending(1, 2, 1, 1)), 1},
		"a heartbeat on append":    {bulk, frameOf(t, message(raftpb.MsgHeartbeat, 1, 2)), 1},
		"a snapshot on append":     {bulk, frameOf(t, snapshotOf(1, 2, nil)), 1},
		"what is said to oneself":  {control, frameOf(t, message(raftpb.MsgCheckQuorum, 1, 2)), 1},
		"a proposal":               {control, frameOf(t, message(raftpb.MsgProp, 1, 2)), 1},
		"an unknown type":          {control, frameOf(t, message(99, 1, 2)), 1},
		"no type, which is MsgHup": {control, frameOf(t, &raftpb.Message{From: new(uint64(1)), To: new(uint64(2))}), 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newCluster(t, 2, nil)
				s := enter(t, w, tc.lane)
				_, err := s.Write(tc.bytes)
				require.NoError(t, err)
				ended(t, s)
				require.Empty(t, w.members[1].take())
				require.Equal(t, tc.refused, w.members[1].counts.of("refused.message"))
				w.members[0].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)})
				settle(2 * time.Second)
				require.Len(t, w.members[1].take(), 1)
			})
		})
	}
}

// Silence ends a stream, of a stranger as of a member within a message.
func TestSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		begin := time.Now()
		ended(t, raw(t, w.stranger, w.members[1].host.ID(), []byte{0, 0, 0, 50, 1}))
		require.InDelta(t, 3, time.Since(begin).Seconds(), 0.5)

		s := enter(t, w)
		_, err := s.Write([]byte{0, 1, 0, 0, 1, 2, 3})
		require.NoError(t, err)
		begin = time.Now()
		ended(t, s)
		require.InDelta(t, 10, time.Since(begin).Seconds(), 0.5)
	})
}

// A stranger with all its streams open does not keep a member out.
func TestFlood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		two := w.members[1]
		for range 100 {
			raw(t, w.stranger, two.host.ID(), []byte{0, 0})
		}
		settle(time.Second)
		require.Equal(t, 100-8, two.counts.of("refused.busy"))
		w.members[0].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)})
		settle(time.Second)
		require.Len(t, two.take(), 1)
	})
}

// Strangers of many ids hold all greetings that strangers may have. A member enters beside them.
func TestFloodOfGreetings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, func(_ int, _ *member, c *Config) { c.Limits.Handshakes, c.Limits.HandshakesPerPeer = 8, 2 })
		two := w.members[1]
		for i := range 6 {
			stranger := w.wire.host(t, 10+i)
			introduce([]host.Host{stranger, two.host})
			for range 2 {
				raw(t, stranger, two.host.ID(), []byte{0, 0})
			}
		}
		settle(time.Second)
		require.GreaterOrEqual(t, two.counts.of("refused.busy"), 12-6)
		w.members[0].Send([]*raftpb.Message{message(raftpb.MsgHeartbeat, 1, 2)})
		settle(time.Second)
		require.Len(t, two.take(), 1)
	})
}

// A member with many streams keeps one of each kind.
func TestNewStreamReplacesTheOld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		older := enter(t, w)
		newer := enter(t, w)
		ended(t, older)
		_, err := newer.Write(frameOf(t, appending(1, 2, 1, 1)))
		require.NoError(t, err)
		settle(time.Second)
		require.Len(t, w.members[1].take(), 1)
		require.Len(t, w.members[1].inbound, 1)
	})
}

// relayed is a stream on a relayed connection.
type relayed struct {
	network.Stream
	reset bool
}

func (r *relayed) Conn() network.Conn         { return relayedConn{} }
func (r *relayed) Scope() network.StreamScope { return &network.NullScope{} }
func (r *relayed) Reset() error               { r.reset = true; return nil }

type relayedConn struct{ network.Conn }

func (relayedConn) RemotePeer() peer.ID { return "relayed" }
func (relayedConn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Limited: true}}
}

func TestRelayedConnectionsAreRefused(t *testing.T) {
	c := newCounts(t)
	config := basic(fakeHost{}, 2)
	config.Metrics = c.Coordination
	tr := New(config)
	s := new(relayed)
	require.Error(t, tr.handshake(s, streamKey{member: 1}))
	in, err := tr.receive(s)
	require.Error(t, err)
	require.Nil(t, in)
	require.True(t, s.reset)
	require.Equal(t, 1, c.of("refused.hello"))
}

// mute is a stream on a connection without incoming data.
type mute struct {
	relayed
	conn *muteConn
}

func (m *mute) Conn() network.Conn          { return m.conn }
func (m *mute) SetDeadline(time.Time) error { return nil }
func (m *mute) Write(b []byte) (int, error) { return len(b), nil }
func (m *mute) Read([]byte) (int, error)    { return 0, m.conn.err }

type muteConn struct {
	network.Conn
	err    error
	closed bool
}

func (c *muteConn) Stat() network.ConnStats { return network.ConnStats{} }
func (c *muteConn) Close() error            { c.closed = true; return nil }

// A connection without any answer is closed, because TCP would revive it long after a partition. A rejection
// keeps it open.
func TestDeadConnectionIsClosed(t *testing.T) {
	for err, dead := range map[error]bool{os.ErrDeadlineExceeded: true, network.ErrReset: false, io.EOF: false} {
		tr := New(basic(fakeHost{}, 2))
		c := &muteConn{err: err}
		require.ErrorIs(t, tr.handshake(&mute{conn: c}, streamKey{member: 1}), fault.Unavailable)
		require.Equal(t, dead, c.closed, "%v", err)
	}
}
