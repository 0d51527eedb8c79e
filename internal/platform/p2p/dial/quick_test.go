package dial

import (
	"context"
	"errors"
	"testing"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/stretchr/testify/require"
)

// strict is a host that fails instead of waiting for identification.
type strict struct{ host.Host }

func (strict) NewStream(context.Context, peer.ID, ...protocol.ID) (network.Stream, error) {
	panic("the stream waits for the identification of the peer")
}

// A stream to a stranger carries a request and its answer without an identification before it, and a peer that does not speak
// the protocol fails the first read.
func TestQuickStream(t *testing.T) {
	const spoken = protocol.ID("/test/quick/1.0.0")
	asked := newHost(t)
	asked.SetStreamHandler(spoken, func(s network.Stream) {
		b := make([]byte, 4)
		n, err := s.Read(b)
		if err == nil {
			_, err = s.Write(b[:n])
		}
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			_ = s.Reset()
		}
	})
	ask := func(p protocol.ID, known ...protocol.ID) (string, error) {
		asking := newHost(t) // knows only these of the other peer's protocols
		require.NoError(t, asking.Peerstore().AddProtocols(asked.ID(), known...))
		asking.Peerstore().AddAddrs(asked.ID(), asked.Addrs(), peerstore.PermanentAddrTTL)
		s, err := QuickHost{strict{asking}}.NewStream(t.Context(), asked.ID(), p)
		require.NoError(t, err)
		require.Equal(t, p, s.Protocol())
		_, err = s.Write([]byte("ask"))
		require.NoError(t, err)
		require.NoError(t, s.CloseWrite())
		b := make([]byte, 4)
		n, err := s.Read(b)
		if err != nil {
			return "", errors.Join(err, s.Reset())
		}
		return string(b[:n]), s.Close()
	}
	answer, err := ask(spoken)
	require.NoError(t, err)
	require.Equal(t, "ask", answer)
	answer, err = ask(spoken, spoken, "/test/other/1.0.0") // of an earlier connection
	require.NoError(t, err)
	require.Equal(t, "ask", answer)
	_, err = ask("/test/unknown/1.0.0")
	require.Error(t, err)
	require.Panics(t, func() { _, _ = ask(spoken, "/test/other/1.0.0") }, "identification tells whether it speaks the protocol now")
}
