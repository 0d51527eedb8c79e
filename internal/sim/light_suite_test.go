package sim

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"
)

// lightAt is a transport on light links.
func lightAt(w *wire, i int) *light {
	at := newPlace(address(i), keyOf(1, uint64(i)))
	return &light{wire: w, own: w.place(at.addr), key: at.key, id: at.id, room: &network.NullResourceManager{}}
}

// pair is a connection over light links.
type pair struct {
	wire      *wire
	near, far transport.CapableConn
	took      time.Duration // for making it
}

const pairTrip = 100 * time.Millisecond // there and back

// inPair plays with a connection in a bubble.
func inPair(t *testing.T, loss float64, play func(*testing.T, *pair)) {
	synctest.Test(t, func(t *testing.T) {
		p := &pair{wire: newWire(pairTrip, loss, 1)}
		defer p.wire.net.Close()
		a, b := lightAt(p.wire, 0), lightAt(p.wire, 1)
		l, err := a.Listen(a.own.addr)
		require.NoError(t, err)
		defer l.Close()
		start := time.Now()
		p.near, err = b.Dial(t.Context(), a.own.addr, a.id)
		require.NoError(t, err)
		p.took = time.Since(start)
		p.far, err = l.Accept()
		require.NoError(t, err)
		play(t, p)
		require.NoError(t, p.near.Close())
		require.NoError(t, p.far.Close())
		time.Sleep(2 * lightIdle)
		p.wire.light.mu.Lock()
		defer p.wire.light.mu.Unlock()
		require.Empty(t, p.wire.light.ties)
	})
}

// stream opens one; the far end is known once something came over it.
func (p *pair) stream(t *testing.T) (near, far network.MuxedStream) {
	near, err := p.near.OpenStream(t.Context())
	require.NoError(t, err)
	_, err = near.Write([]byte{0})
	require.NoError(t, err)
	far, err = p.far.AcceptStream()
	require.NoError(t, err)
	_, err = io.ReadFull(far, make([]byte, 1))
	require.NoError(t, err)
	return near, far
}

func TestLightLinksTakeTime(t *testing.T) {
	inPair(t, 0, func(t *testing.T, p *pair) {
		require.Equal(t, pairTrip, p.took)
		start := time.Now()
		near, far := p.stream(t)
		require.Equal(t, pairTrip/2, time.Since(start))
		_, err := far.Write([]byte("answer"))
		require.NoError(t, err)
		require.NoError(t, far.CloseWrite())
		got, err := io.ReadAll(near)
		require.NoError(t, err)
		require.Equal(t, "answer", string(got))
		require.Equal(t, pairTrip, time.Since(start))

		require.NoError(t, near.SetReadDeadline(time.Now().Add(-time.Second)))
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, far.SetReadDeadline(time.Now().Add(time.Second)))
		_, err = far.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, pairTrip+time.Second, time.Since(start))
	})
}

// Losses delay what is sent; they neither lose nor reorder it.
func TestLightLinksRepeatWhatIsLost(t *testing.T) {
	inPair(t, 0.3, func(t *testing.T, p *pair) {
		near, far := p.stream(t)
		var want []byte
		for i := range 200 {
			want = append(want, byte(i))
			_, err := near.Write(want[i:])
			require.NoError(t, err)
		}
		require.NoError(t, near.CloseWrite())
		start := time.Now()
		got, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Greater(t, time.Since(start), pairTrip)
		require.NotZero(t, p.wire.lost.Load())
	})
}

// A writer is not further ahead of its reader than the window.
func TestLightLinksHoldWritersBack(t *testing.T) {
	inPair(t, 0, func(t *testing.T, p *pair) {
		near, far := p.stream(t)
		require.NoError(t, near.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := near.Write(make([]byte, lightWindow+1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, lightWindow, n)
		_, err = io.ReadFull(far, make([]byte, lightWindow))
		require.NoError(t, err)
		require.NoError(t, near.SetWriteDeadline(time.Time{}))
		_, err = near.Write([]byte{1})
		require.NoError(t, err)
	})
}

func TestLightLinksTellOfEnds(t *testing.T) {
	inPair(t, 0, func(t *testing.T, p *pair) {
		near, far := p.stream(t)
		require.NoError(t, near.ResetWithError(7))
		_, err := far.Read(make([]byte, 1))
		require.ErrorIs(t, err, &network.StreamError{ErrorCode: 7, Remote: true})
		_, err = far.Write(make([]byte, 1))
		require.ErrorIs(t, err, &network.StreamError{ErrorCode: 7, Remote: true})
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, &network.StreamError{ErrorCode: 7})

		_, far = p.stream(t)
		require.NoError(t, p.near.CloseWithError(network.ConnGarbageCollected))
		_, err = far.Read(make([]byte, 1))
		require.ErrorIs(t, err, &network.ConnError{ErrorCode: network.ConnGarbageCollected, Remote: true})
		require.True(t, p.far.IsClosed())
		_, err = p.far.OpenStream(t.Context())
		require.ErrorIs(t, err, network.ErrReset)
	})
}

// Who vanishes is noticed as QUIC would: connections last 30 s, dials fail after 5 s.
func TestLightLinksNoticeSilence(t *testing.T) {
	isTimeout := func(err error) bool {
		var timeout interface{ Timeout() bool }
		return errors.As(err, &timeout) && timeout.Timeout()
	}
	inPair(t, 0, func(t *testing.T, p *pair) {
		near, far := p.stream(t)
		p.wire.split(map[netip.Addr]int{address(0): 1})
		_, err := near.Write([]byte("held up"))
		require.NoError(t, err)
		time.Sleep(lightIdle - time.Second)
		p.wire.split(nil)
		_, err = io.ReadFull(far, make([]byte, 7))
		require.NoError(t, err)

		p.wire.silence(address(0))
		start := time.Now()
		_, err = near.Read(make([]byte, 1))
		require.True(t, isTimeout(err), "%v", err)
		require.Equal(t, lightIdle, time.Since(start))
		synctest.Wait() // one end hears of it before the other
		require.True(t, p.far.IsClosed())

		start = time.Now()
		to := p.near.(*lightConn).remote
		_, err = p.near.Transport().Dial(t.Context(), to.own.addr, to.id)
		require.True(t, isTimeout(err), "%v", err)
		require.Equal(t, lightShake, time.Since(start))
	})
}

// full refuses every connection that comes in.
type full struct{ network.NullResourceManager }

func (full) OpenConnection(d network.Direction, _ bool, _ multiaddr.Multiaddr) (network.ConnManagementScope, error) {
	if d == network.DirInbound {
		return nil, network.ErrResourceLimitExceeded
	}
	return &network.NullScope{}, nil
}

func TestLightLinksAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(pairTrip, 0, 1)
		defer w.net.Close()
		a, b := lightAt(w, 0), lightAt(w, 1)
		a.room = &full{}
		l, err := a.Listen(a.own.addr)
		require.NoError(t, err)
		defer l.Close()
		_, err = a.Listen(a.own.addr)
		require.ErrorIs(t, err, errTaken)
		_, err = b.Dial(t.Context(), a.own.addr, b.id)
		require.ErrorContains(t, err, "peer id mismatch")
		c, err := b.Dial(t.Context(), a.own.addr, a.id)
		require.NoError(t, err)
		_, err = c.AcceptStream()
		require.ErrorIs(t, err, &network.ConnError{ErrorCode: network.ConnResourceLimitExceeded, Remote: true})
		time.Sleep(lightIdle)
	})
}
