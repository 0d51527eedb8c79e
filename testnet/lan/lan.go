// Package lan makes a network of hosts inside this machine, each a network namespace of Linux,
// whose packets to any other host can be lost from one moment to the next, in one direction or both.
//
// Nothing of it has a name outside this process: the namespaces live as long as somebody holds
// them or runs in them, the devices in them as long as they do. So nothing is left over,
// however the process ends, and the machine's own network is not touched.
//
// A cut gives a host a wrong link-layer address for another one. Packets leave and nobody takes
// them: no error tells the sender, as with a broken switch and unlike with a closed port.
package lan

import (
	"context"
	"fmt"
	"net"
)

// Most hosts that a LAN has.
const Most = 200

// subnet is of RFC 2544, for tests of networks: no address that anybody has.
const subnet = "198.18.0."

// nowhere is a unicast address (the bit for locally administered ones is set) that no device has.
const nowhere = "02:00:00:00:00:01"

// Host is one host of a LAN. Its methods are safe for concurrent use.
type Host struct {
	// IP is its address in the LAN.
	IP string

	space *space
}

// LAN is a network of hosts. Close it when nothing runs in it any more. Cut and Mend are for one
// goroutine.
type LAN struct {
	Hosts []*Host

	middle *space // has the bridge
}

func address(i int) string { return fmt.Sprintf("%s%d", subnet, i+1) }

// Cut loses whatever host from sends to host to, indices of Hosts.
func (l *LAN) Cut(from, to int) error {
	return l.Hosts[from].ip("neigh", "replace", l.Hosts[to].IP, "lladdr", nowhere, "nud", "permanent", "dev", "eth0")
}

// Mend ends a cut. Where there is none it does nothing.
func (l *LAN) Mend(from, to int) error {
	// What resolution finds is a cut's absence as well: the entry is replaced, then made to be resolved again.
	if err := l.Hosts[from].ip("neigh", "replace", l.Hosts[to].IP, "lladdr", nowhere, "nud", "stale", "dev", "eth0"); err != nil {
		return err
	}
	return l.Hosts[from].ip("neigh", "del", l.Hosts[to].IP, "dev", "eth0")
}

// Do runs f on a thread that is on the host: what f dials, listens on and starts is there. What
// f leaves to other goroutines is not.
func (h *Host) Do(f func() error) error { return h.space.do(f) }

// Dial connects to a literal address as from the host, its own loopback included.
func (h *Host) Dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = h.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// Close gives the LAN back.
func (l *LAN) Close() {
	for _, h := range l.Hosts {
		h.space.close()
	}
	l.middle.close()
}
