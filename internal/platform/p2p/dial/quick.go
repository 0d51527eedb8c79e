package dial

import (
	"context"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-multistream"
)

// quickClose bounds the wait of Close for the other side's part of a negotiation.
const quickClose = 10 * time.Second

// QuickHost opens a stream on a new connection at once. A libp2p host waits until both sides have identified each other,
// which takes a round trip: a third of a request to a peer without a connection. Lookups and keepers ask many such
// peers. A peer that does not speak the protocol, or does no more since its last connection, fails the first read instead of NewStream.
type QuickHost struct{ host.Host }

// NewStream implements host.Host. With one protocol it does not wait for identification.
func (h QuickHost) NewStream(ctx context.Context, id peer.ID, protocols ...protocol.ID) (network.Stream, error) {
	known, _ := h.Peerstore().GetProtocols(id)
	if len(protocols) != 1 || len(known) > 0 && !slices.Contains(known, protocols[0]) {
		return h.Host.NewStream(ctx, id, protocols...)
	}
	s, err := h.Network().NewStream(ctx, id)
	if err != nil {
		return h.Host.NewStream(ctx, id, protocols...) // a routed host looks for addresses
	}
	if err := s.SetProtocol(protocols[0]); err != nil {
		_ = s.Reset()
		return nil, err
	}
	return &quickStream{Stream: s, negotiated: multistream.NewMSSelect(s, protocols[0])}, nil
}

// quickStream sends the name of its protocol with the first bytes.
type quickStream struct {
	network.Stream
	negotiated multistream.LazyConn
}

func (s *quickStream) Read(b []byte) (int, error)  { return s.negotiated.Read(b) }
func (s *quickStream) Write(b []byte) (int, error) { return s.negotiated.Write(b) }

func (s *quickStream) Close() error {
	_ = s.SetReadDeadline(time.Now().Add(quickClose))
	return s.negotiated.Close()
}

func (s *quickStream) CloseWrite() error {
	if f, ok := s.negotiated.(interface{ Flush() error }); ok {
		_ = f.Flush() // the reader learns of a failure
	}
	return s.Stream.CloseWrite()
}
