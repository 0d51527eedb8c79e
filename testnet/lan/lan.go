// Package lan builds a local network of hosts inside this machine. Packets between two hosts can
// be dropped at any time, in one or both directions.
package lan

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

// Most is the largest number of hosts in a LAN.
const Most = 200

// subnet is reserved for network tests (RFC 2544), so it collides with no real address.
const subnet = "198.18.0."

const (
	apiPort    = 8500 // on the loopback of every host, and the next two ports
	listenPort = 4001 // for other peers
	portsEach  = 4    // ports for each peer without a LAN
)

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

// Places returns n addresses of peers that stay over restarts: one on each host, or all on loopback without a LAN.
func (l *LAN) Places(n int) (all []process.Place, err error) {
	if l != nil {
		at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", apiPort+n) }
		for _, h := range l.Hosts {
			all = append(all, process.Place{Listen: fmt.Sprintf("/ip4/%s/tcp/%d", h.IP, listenPort), HTTP: at(0), DNS: at(1), GRPC: at(2), Within: h.Do})
		}
		return all, nil
	}
	free, err := process.FreePorts(n * portsEach) // all at once, so that none is used twice
	if err != nil {
		return nil, err
	}
	for at := range slices.Chunk(free, portsEach) {
		_, port, _ := net.SplitHostPort(at[0]) // FreePorts returns host:port
		all = append(all, process.Place{Listen: "/ip4/127.0.0.1/tcp/" + port, HTTP: at[1], GRPC: at[2], DNS: at[3]})
	}
	return all, nil
}

// Dial returns the dialer of host i, or of this machine without a LAN, over TCP.
func (l *LAN) Dial(i int) func(ctx context.Context, network, address string) (net.Conn, error) {
	if l == nil {
		return new(net.Dialer).DialContext
	}
	return func(ctx context.Context, _, address string) (net.Conn, error) { return l.Hosts[i].Dial(ctx, address) }
}

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
