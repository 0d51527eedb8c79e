// Package lan builds a local network of hosts inside this machine. Packets between two hosts can
// be dropped at any time, in one or both directions.
package lan

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/netns"
)

// Most is the largest number of hosts in a LAN.
const Most = 200

// subnet is reserved for network tests (RFC 2544), so it collides with no real address.
const subnet = "198.18.0."

// Host is one host of a LAN. Its methods are safe for concurrent use.
type Host struct {
	// IP is its address in the LAN.
	IP string

	space *netns.Space
	port  *netns.Port
}

// LAN is a network of hosts. Close it after its last process ended.
type LAN struct {
	Hosts []*Host

	network *netns.Network
}

// New builds a LAN of n hosts, at most Most. Errors: Unsupported without the permission, without
// ip(8) or without TUN devices.
func New(n int) (*LAN, error) {
	const op = "lan.New"
	if n < 1 || n > Most {
		return nil, fault.Wrap(op, fault.Invalidf("hosts", n, "must be 1 to %d", Most))
	}
	l := &LAN{network: netns.NewNetwork(netns.Quality{})}
	for i := range n {
		if err := l.join(fmt.Sprintf("%s%d", subnet, i+1)); err != nil {
			l.Close()
			return nil, fault.Wrap(op, err)
		}
	}
	return l, nil
}

func (l *LAN) join(ip string) error {
	space, err := netns.NewSpace()
	if err != nil {
		return err
	}
	h := &Host{IP: ip, space: space}
	l.Hosts = append(l.Hosts, h)
	if h.port, err = l.network.Plug(space, "eth0"); err != nil {
		return err
	}
	return h.port.Add(netip.PrefixFrom(netip.MustParseAddr(ip), 24))
}

// Cut drops all packets from host from to host to. Both are indices of Hosts.
func (l *LAN) Cut(from, to int) { l.network.Cut(l.Hosts[from].port, l.Hosts[to].port) }

// Mend ends a cut. Without a cut it does nothing.
func (l *LAN) Mend(from, to int) { l.network.Mend(l.Hosts[from].port, l.Hosts[to].port) }

// Lose drops a part of all packets, 0 to 1, from now on.
func (l *LAN) Lose(part float64) { l.network.SetQuality(netns.Quality{Loss: part}) }

// Do runs f on a thread inside the host: f dials, listens and starts processes there. Other
// goroutines started by f stay outside.
func (h *Host) Do(f func() error) error { return h.space.Do(f) }

// Dial connects to a literal address from inside the host, its own loopback included.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	return h.space.Dial(ctx, address)
}

// Close releases the LAN.
func (l *LAN) Close() {
	l.network.Close()
	for _, h := range l.Hosts {
		h.space.Close()
	}
}
