package transport

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"testing/iotest"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// Frames survive any fragmentation, up to the bound and not beyond.
func TestFramesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(
			rapid.IntRange(0, 100), rapid.IntRange(keptSize-100, keptSize+100)), 1, 8).Draw(t, "sizes")
		var wire []byte
		var sent []*raftpb.Message
		for i, n := range sizes {
			m := appending(1, 2, uint64(i), n)
			var err error
			wire, err = appendFrame(wire, m, MaxFrame)
			require.NoError(t, err)
			sent = append(sent, m)
		}
		reader := io.Reader(bytes.NewReader(wire))
		if rapid.Bool().Draw(t, "halved") {
			reader = iotest.HalfReader(reader)
		}
		f := newFrames(reader, &network.NullScope{})
		for _, want := range sent {
			b, err := f.next(MaxFrame)
			require.NoError(t, err)
			got, err := decode(b)
			require.NoError(t, err)
			require.True(t, proto.Equal(want, got))
		}
		_, err := f.next(MaxFrame)
		require.ErrorIs(t, err, io.EOF)
		require.LessOrEqual(t, cap(f.buf), keptSize)
	})
}

func TestFramesAreBounded(t *testing.T) {
	m := appending(1, 2, 1, 100)
	size := proto.Size(m)
	b, err := appendFrame([]byte("before"), m, size-1)
	require.ErrorIs(t, err, fault.TooLarge)
	require.Equal(t, "before", string(b))
	b, err = appendFrame(nil, m, size)
	require.NoError(t, err)
	_, err = newFrames(bytes.NewReader(b), &network.NullScope{}).next(size - 1)
	require.ErrorIs(t, err, fault.TooLarge)
	_, err = newFrames(bytes.NewReader(b[:len(b)-1]), &network.NullScope{}).next(size)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)

	large := binary.BigEndian.AppendUint32(nil, MaxFrame)
	_, err = newFrames(bytes.NewReader(large), &full{}).next(MaxFrame)
	require.ErrorIs(t, err, fault.LimitReached, "no memory for it")
}

type full struct{ network.NullScope }

func (*full) ReserveMemory(int, uint8) error { return io.ErrShortBuffer }

// The send queue equals a simple model.
func TestOutbox(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count, size := rapid.IntRange(1, 5).Draw(t, "count"), rapid.IntRange(1, 2000).Draw(t, "bytes")
		box := newSendQueue(count, size)
		var want, spare []*raftpb.Message
		lost := false
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				m := appending(1, 2, 1, rapid.IntRange(0, 1000).Draw(t, "size"))
				bytes := weigh(m)
				for _, waiting := range want {
					bytes += weigh(waiting)
				}
				fits := len(want) < count && (len(want) == 0 || bytes <= size)
				require.Equal(t, fits, box.put(m))
				if fits {
					want = append(want, m)
					require.Len(t, box.ready, 1)
				}
				lost = lost || !fits
			},
			"take": func(t *rapid.T) {
				got, gotLost := box.take(spare)
				require.Equal(t, lost, gotLost)
				require.Equal(t, len(want), len(got))
				for i := range got {
					require.Same(t, want[i], got[i])
				}
				want, lost, spare = nil, false, got
			},
		})
	})
}

// Every Raft message type is either sent or local; none is forgotten.
func TestEveryMessageTypeHasItsPlace(t *testing.T) {
	home := map[raftpb.MessageType]bool{
		raftpb.MsgHup: true, raftpb.MsgBeat: true, raftpb.MsgProp: true, raftpb.MsgUnreachable: true, raftpb.MsgSnapStatus: true,
		raftpb.MsgCheckQuorum: true, raftpb.MsgTransferLeader: true, raftpb.MsgForgetLeader: true,
		raftpb.MsgStorageAppend: true, raftpb.MsgStorageAppendResp: true, raftpb.MsgStorageApply: true, raftpb.MsgStorageApplyResp: true,
	}
	for number := range raftpb.MessageType_name {
		kind := raftpb.MessageType(number)
		lane, ok := kindOf(kind)
		require.Equal(t, !home[kind], ok, kind)
		require.Equal(t, ok, nameOf(lane) != "none", kind)
	}
}

func TestReadAnswerIsBounded(t *testing.T) {
	b := binary.BigEndian.AppendUint32(nil, maxHello+1)
	require.ErrorIs(t, readAnswer(bytes.NewReader(b), new(groupv1.MemberWelcome)), fault.TooLarge)
}

// Every accepted message decodes in Protobuf too.
func FuzzDecode(f *testing.F) {
	for _, m := range []*raftpb.Message{appending(1, 2, 3, 4), message(raftpb.MsgHeartbeat, 1, 2), snapshotOf(1, 2, []byte("x"))} {
		b, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte{0xff, 0xff})
	f.Add(bytes.Repeat([]byte{0x3a, 0x00}, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		dumb := new(raftpb.Message)
		failed := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, dumb)
		m, err := decode(b)
		if len(dumb.Entries) > maxEntries {
			require.ErrorIs(t, err, fault.LimitReached)
			return
		}
		require.Equal(t, failed == nil, err == nil)
		if err == nil {
			require.True(t, proto.Equal(dumb, m))
			tr := &Transport{config: Config{Member: 2}}
			for _, lane := range []groupv1.StreamKind{groupv1.StreamKind_STREAM_KIND_CONTROL, groupv1.StreamKind_STREAM_KIND_APPEND, groupv1.StreamKind_STREAM_KIND_SNAPSHOT} {
				if m, err := tr.parse(&inbound{key: streamKey{1, lane}}, b); err == nil {
					require.Equal(t, uint64(1), m.GetFrom())
				}
			}
		}
	})
}
