// Package netns builds networks of hosts inside this machine. Each host is a Linux network
// namespace. A Network carries packets between hosts in this process: it can delay, lose, reorder
// and drop them, as a kernel without a queueing discipline for it cannot.
//
// The namespaces have no names outside this process. A process keeps
// them alive, and they keep their devices. So no end of the process leaves anything
// behind, and the network of the machine stays untouched.
package netns

import (
	"context"
	"net"
)

// Dial connects to a literal address over TCP, from inside the namespace, its own loopback included.
func (s *Space) Dial(ctx context.Context, address string) (net.Conn, error) {
	return s.dial(ctx, "tcp", address)
}

// DialUDP is Dial over UDP.
func (s *Space) DialUDP(ctx context.Context, address string) (net.Conn, error) {
	return s.dial(ctx, "udp", address)
}

func (s *Space) dial(ctx context.Context, over, address string) (conn net.Conn, err error) {
	err = s.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, over, address)
		return err
	})
	return conn, err
}
