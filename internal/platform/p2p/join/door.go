package join

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/pnet"
	"github.com/libp2p/go-libp2p/core/protocol"
	closed "github.com/libp2p/go-libp2p/p2p/net/pnet"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/multiformats/go-multiaddr"
	madns "github.com/multiformats/go-multiaddr-dns"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/multiformats/go-multistream"

	"github.com/blackhole/blackhole/internal/platform/p2p/routing"
	"github.com/blackhole/blackhole/internal/platform/pause"
)

const (
	maxBehindDoor = 32              // peers of one name
	askDoor       = 2 * time.Second // for the answer of one of them
)

// enter connects the peers at an address without an id, often while this peer knows few others: the name of a
// service leads to peers that start with this one, and to others later.
func (b *Bootstrapper) enter(ctx context.Context, door multiaddr.Multiaddr, psk pnet.PSK) {
	known := make(map[string]peer.ID) // who answered at which of its addresses
	for rest := firstRetry; ; {
		err := b.knock(ctx, door, psk, known)
		b.tried(door, err, rest >= recheckSmall)
		if err != nil {
			b.log.Debug("nobody answers at an address", "address", door.String(), "err", err)
		}
		if !pause.For(ctx, rest) {
			return
		}
		if rest = min(2*rest, recheckSmall); b.routing.Size() >= routing.Replicas {
			rest = recheckLarge
		}
	}
}

// knock asks the peers at an address for their ids, and connects them. It asks nobody twice who stays connected.
func (b *Bootstrapper) knock(ctx context.Context, door multiaddr.Multiaddr, psk pnet.PSK, known map[string]peer.ID) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, err := madns.DefaultResolver.Resolve(ctx, door)
	if err != nil {
		return err
	}
	addrs = addrs[:min(len(addrs), maxBehindDoor)]
	maps.DeleteFunc(known, func(at string, id peer.ID) bool {
		there := slices.ContainsFunc(addrs, func(a multiaddr.Multiaddr) bool { return string(a.Bytes()) == at })
		return !there || id != b.host.ID() && b.host.Network().Connectedness(id) != network.Connected
	})
	var errs []error
	for _, addr := range addrs {
		if _, done := known[string(addr.Bytes())]; done {
			continue
		}
		id, err := who(ctx, b.host, addr, psk)
		if err == nil && id != b.host.ID() {
			err = b.connect(ctx, peer.AddrInfo{ID: id, Addrs: []multiaddr.Multiaddr{addr}})
		}
		if err == nil {
			known[string(addr.Bytes())] = id
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// who returns the id of the peer at a TCP address, which the handshake of a connection proves. psk is the key of a
// closed network.
func who(ctx context.Context, h host.Host, addr multiaddr.Multiaddr, psk pnet.PSK) (peer.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, askDoor)
	defer cancel()
	conn, err := new(manet.Dialer).DialContext(ctx, addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	plain, err := noise.New(noise.ID, h.Peerstore().PrivKey(h.ID()), nil)
	if err != nil {
		return "", err
	}
	anybody, err := plain.WithSessionOptions(noise.DisablePeerIDCheck())
	if err != nil {
		return "", err
	}
	var line net.Conn = conn
	if len(psk) > 0 {
		if line, err = closed.NewProtectedConn(psk, conn); err != nil {
			return "", err
		}
	}
	if _, err := multistream.SelectOneOf([]protocol.ID{noise.ID}, line); err != nil {
		return "", fmt.Errorf("no handshake: %w", err)
	}
	secured, err := anybody.SecureOutbound(ctx, line, "")
	if err != nil {
		return "", err
	}
	return secured.RemotePeer(), nil
}
