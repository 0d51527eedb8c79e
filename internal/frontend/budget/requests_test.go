package budget

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials/insecure"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/platform/access"
)

// message is one of gRPC with n bytes.
func message(n int) []byte {
	m := make([]byte, 5+n)
	binary.BigEndian.PutUint32(m[1:], uint32(n))
	return m
}

// TestFrames: the data of each stream comes whole, padded or not, in pieces of any size, and so do the heads of frames.
func TestFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var wire bytes.Buffer
		w := http2.NewFramer(&wire, nil)
		want, heads := map[uint32][]byte{}, 0
		for range rapid.IntRange(1, 20).Draw(t, "frames") {
			stream := 2*rapid.Uint32Range(0, 2).Draw(t, "stream") + 1
			data := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "data")
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				require.NoError(t, w.WriteData(stream, false, data))
				want[stream] = append(want[stream], data...)
			case 1:
				require.NoError(t, w.WriteDataPadded(stream, false, data, make([]byte, rapid.IntRange(0, 255).Draw(t, "padding"))))
				want[stream] = append(want[stream], data...)
			case 2:
				require.NoError(t, w.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: data}))
			default:
				require.NoError(t, w.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}))
			}
			heads++
		}
		var f frames
		got := map[uint32][]byte{}
		for left := wire.Bytes(); len(left) > 0; {
			n := rapid.IntRange(1, len(left)).Draw(t, "piece")
			require.NoError(t, f.follow(left[:n], func(*frames) { heads-- }, func(stream uint32, part []byte) error {
				got[stream] = append(got[stream], part...)
				return nil
			}))
			left = left[n:]
		}
		require.Zero(t, heads)
		for stream, data := range want {
			require.True(t, bytes.Equal(data, got[stream]))
		}
	})
}

// TestArrival: a large message has room from its head to its last byte, a small one needs none, and one without room becomes too large for
// gRPC, in pieces of any size that leave its head whole.
func TestArrival(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := 1 << 20
		pool := access.NewPool("arriving_bytes", total, nil)
		room := func(n int) (func(), error) { return pool.TakeBytes(t.Context(), "op", n, 0) }
		var a arrival
		whole := 0
		var all []byte
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, access.Small, access.Small + 1, 100_000}), 1, 5).Draw(t, "sizes")
		for _, n := range sizes {
			all = append(all, message(n)...)
		}
		for len(all) > 0 {
			n := rapid.IntRange(1, len(all)).Draw(t, "piece")
			require.NoError(t, a.follow(all[:n], room, func() {}, func() { whole++; a.end() }))
			if used := pool.Used(); used > 0 {
				require.Positive(t, a.left)
				require.Greater(t, used, access.Small)
			}
			all = all[n:]
		}
		require.Equal(t, len(sizes), whole)
		require.Zero(t, pool.Used())
	})
	full := errors.New("full")
	none := func(int) (func(), error) { return nil, full }
	var a arrival
	m := append(message(3), message(1<<20)...)
	require.NoError(t, a.follow(m, func(n int) (func(), error) {
		if n == 3 {
			return nil, nil
		}
		return nil, full
	}, nil, func() {}))
	require.Equal(t, uint32(math.MaxUint32), binary.BigEndian.Uint32(m[9:]))
	require.NoError(t, a.follow(message(9), none, nil, nil), "the rest is nobody's")
	var pieces arrival
	head := message(1 << 20)
	require.NoError(t, pieces.follow(head[:3], none, nil, nil))
	require.ErrorIs(t, pieces.follow(head[3:5], none, nil, nil), full)
}

// TestConnectionGivesBack: the room of a message that never arrives is free when its call ends, by either side, and when its connection does.
func TestConnectionGivesBack(t *testing.T) {
	pool := access.NewPool("arriving_bytes", 64<<20, nil)
	here, there := net.Pipe()
	defer there.Close()
	c, _, err := arriving{insecure.NewCredentials(), pool}.Clone().ServerHandshake(here)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() { // the server reads, and so does the client
		defer close(ended)
		_, _ = io.Copy(io.Discard, c)
	}()
	go func() { _, _ = io.Copy(io.Discard, there) }()
	_, err = io.WriteString(there, http2.ClientPreface)
	require.NoError(t, err)
	client, server := http2.NewFramer(there, nil), http2.NewFramer(c, nil)
	used := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return pool.Used() == n }, time.Minute, time.Millisecond)
	}
	for n, end := range []func(stream uint32) error{
		func(stream uint32) error { return client.WriteRSTStream(stream, http2.ErrCodeCancel) },
		func(stream uint32) error { return server.WriteRSTStream(stream, http2.ErrCodeCancel) },
		func(stream uint32) error {
			return server.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndStream: true, EndHeaders: true})
		},
		func(uint32) error { return c.Close() },
	} {
		stream := uint32(2*n + 1)
		require.NoError(t, client.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true}))
		require.NoError(t, client.WriteData(stream, false, message(1 << 20)[:100]))
		used(1 << 20)
		require.NoError(t, end(stream))
		used(0)
	}
	<-ended
}
