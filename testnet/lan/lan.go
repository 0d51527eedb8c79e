// Package lan builds a network of hosts inside this machine. Each host is a Linux network
// namespace. Packets between two hosts can be dropped at any time, in one or both directions.
//
// The namespaces have no names outside this process. A process keeps
// them alive, and they keep their devices. So no end of the process leaves anything
// behind, and the network of the machine stays untouched.
//
// A cut gives a host a wrong link-layer address for another host. Packets leave and nobody
// receives them: senders see no error, as with a broken switch and unlike a closed port.
package lan

import (
	"context"
	"fmt"
	"net"
)

// Most is the largest number of hosts in a LAN.
const Most = 200

// subnet is reserved for network tests (RFC 2544), so it collides with no real address.
const subnet = "198.18.0."

// nowhere is a locally administered unicast address without a device.
const nowhere = "02:00:00:00:00:01"

// Host is one host of a LAN. Its methods are safe for concurrent use.
type Host struct {
	// IP is its address in the LAN.
	IP string

	space *space
}

// LAN is a network of hosts. Close it after its last process ended. Cut and Mend are for one
// goroutine.
type LAN struct {
	Hosts []*Host

	middle *space // holds the bridge
}

func address(i int) string { return fmt.Sprintf("%s%d", subnet, i+1) }

// Cut drops all packets from host from to host to. Both are indices of Hosts.
func (l *LAN) Cut(from, to int) error {
	return l.Hosts[from].ip("neigh", "replace", l.Hosts[to].IP, "lladdr", nowhere, "nud", "permanent", "dev", "eth0")
}

// Mend ends a cut. Without a cut it does nothing.
func (l *LAN) Mend(from, to int) error {
	// Resolution itself ends the cut: replace the entry, then make it resolve again.
	if err := l.Hosts[from].ip("neigh", "replace", l.Hosts[to].IP, "lladdr", nowhere, "nud", "stale", "dev", "eth0"); err != nil {
		return err
	}
	return l.Hosts[from].ip("neigh", "del", l.Hosts[to].IP, "dev", "eth0")
}

// Do runs f on a thread inside the host: f dials, listens and starts processes there. Other
// goroutines started by f stay outside.
func (h *Host) Do(f func() error) error { return h.space.do(f) }

// Dial connects to a literal address from inside the host, its own loopback included.
func (h *Host) Dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = h.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// Close releases the LAN.
func (l *LAN) Close() {
	for _, h := range l.Hosts {
		h.space.close()
	}
	l.middle.close()
}
