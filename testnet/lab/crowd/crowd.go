// Package crowd is a crowd of honest idle libp2p hosts in one process. Each host connects to one
// peer, pings once, keeps the connection, and returns after a refusal or a cut.
package crowd

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	dialsAtOnce = 16
	dialLimit   = 20 * time.Second
	comesBack   = 5 * time.Second // after a refusal or the loss of the connection, with jitter
)

// Command is the first argument of a program that is a crowd.
const Command = "crowd"

// Address returns the address of the i-th host.
func Address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{30, 1, byte(i / 250), byte(1 + i%250)})
}

// crowd is a number of hosts, with their addresses on this machine.
type crowd struct {
	size int
	to   peer.AddrInfo
	out  io.Writer
}

// Run is the program. Its arguments: number of hosts, addresses of the peer. It ends with ctx or
// its input, held open by the parent. It writes a line after one attempt of every host, then every
// 10 s.
func Run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	const op, arguments = "crowd.Run", 2
	if len(args) != arguments {
		return fault.Invalidf("arguments", args, "must be: number of hosts, addresses of a peer")
	}
	c := crowd{out: out}
	var err error
	if c.size, err = strconv.Atoi(args[0]); err != nil {
		return fault.As(op, fault.Invalid, err)
	}
	for _, address := range strings.Split(args[1], ",") {
		info, err := peer.AddrInfoFromString(address)
		if err != nil {
			return fault.As(op, fault.Invalid, err)
		}
		c.to.ID, c.to.Addrs = info.ID, append(c.to.Addrs, info.Addrs...)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the parent or this program
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return c.run(ctx)
}

// run keeps the crowd until ctx ends.
func (c crowd) run(ctx context.Context) error {
	const op = "crowd.run"
	hosts := make([]host.Host, c.size)
	for i := range hosts {
		h, err := NewHost(Address(i))
		if err != nil {
			return fault.As(op, fault.Unavailable, err)
		}
		defer h.Close()
		hosts[i] = h
	}
	var tries sync.WaitGroup
	tries.Add(c.size)
	var connected atomic.Int64
	slots := make(chan struct{}, dialsAtOnce)
	var work sync.WaitGroup
	for _, h := range hosts {
		work.Go(func() {
			first := sync.OnceFunc(tries.Done)
			defer first()
			for ctx.Err() == nil {
				c.visit(ctx, h, slots, first, &connected)
				_ = await.Pause(ctx, comesBack/2+rand.N(comesBack))
			}
		})
	}
	tries.Wait()
	for ctx.Err() == nil {
		fmt.Fprintf(c.out, "%d of %d are connected\n", connected.Load(), c.size)
		_ = await.Pause(ctx, 10*time.Second)
	}
	work.Wait()
	return nil
}

// visit connects once, pings, and returns after the end of the connection. It calls tried after the
// attempt.
func (c crowd) visit(ctx context.Context, h host.Host, slots chan struct{}, tried func(), connected *atomic.Int64) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	err := c.call(ctx, h)
	<-slots
	if err == nil {
		connected.Add(1)
		defer connected.Add(-1)
	}
	tried()
	for err == nil && ctx.Err() == nil && h.Network().Connectedness(c.to.ID) == network.Connected {
		_ = await.Pause(ctx, time.Second)
	}
}

func (c crowd) call(ctx context.Context, h host.Host) error {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	if err := h.Connect(ctx, c.to); err != nil {
		return err
	}
	return (<-ping.Ping(ctx, h, c.to.ID)).Error
}

// NewHost returns a host that listens at its own address and dials from it, over TCP.
func NewHost(address netip.Addr) (host.Host, error) {
	from := func(multiaddr.Multiaddr) (tcp.ContextDialer, error) {
		return &net.Dialer{LocalAddr: &net.TCPAddr{IP: address.AsSlice()}}, nil
	}
	family := "/ip4/"
	if address.Is6() {
		family = "/ip6/"
	}
	listen, err := multiaddr.NewMultiaddr(family + address.String() + "/tcp/0")
	if err != nil {
		return nil, err
	}
	return libp2p.New(
		libp2p.ListenAddrs(listen), libp2p.Transport(tcp.NewTCPTransport, tcp.WithDialerForAddr(from)), libp2p.Security(noise.ID, noise.New),
		libp2p.ResourceManager(&network.NullResourceManager{}), libp2p.DisableRelay(), libp2p.DisableMetrics(),
		libp2p.ForceReachabilityPublic(), libp2p.DisableIdentifyAddressDiscovery())
}
