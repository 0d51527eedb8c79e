package netns

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// packetSize is the MTU of all devices.
const packetSize = 1500

// device is the TUN device of a port.
type device interface {
	io.ReadWriteCloser
}

// Quality is how a Network carries packets. The zero Quality is perfect.
type Quality struct {
	Delay   time.Duration // from port to port: half of a round trip
	Loss    float64       // part of the packets that is lost: 0 to 1
	Reorder float64       // part of the packets that is overtaken: 0 to 1
	Late    time.Duration // additional delay of an overtaken packet
	// Far is what the way between two ports adds to Delay; nil: nothing. It must be fast.
	Far func(from, to *Port) time.Duration
}

// Network carries IP packets between its ports by destination: to the port with that address, to
// all other ports for a multicast address, else to the uplink. Unlike a host, it never answers.
// Its methods are safe for concurrent use.
type Network struct {
	mu      sync.RWMutex // guards what follows
	quality Quality
	ports   []*Port
	owners  map[netip.Addr]*Port
	uplink  *Port
	cuts    map[[2]*Port]bool

	random  func() float64
	delayed *queue
	work    sync.WaitGroup // readers
	dropped atomic.Int64
}

// Port connects one device of one host to a network.
type Port struct {
	network *Network
	space   *Space
	name    string
	device  device
	line    *line // nil: as fast as this machine
}

// line is a slow link: what it carries waits its turn.
type line struct {
	perSecond int // bytes
	mu        sync.Mutex
	free      time.Time // when it has carried all so far
}

// fullLine is the longest wait at a slow link; later packets are lost, as in a full buffer.
const fullLine = 300 * time.Millisecond

// take returns how long a packet waits and goes. It reports false for a full link. A nil line is no link.
func (l *line) take(size int, now time.Time) (time.Duration, bool) {
	if l == nil {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	begin := now
	if l.free.After(now) {
		begin = l.free
	}
	if begin.Sub(now) > fullLine {
		return 0, false
	}
	l.free = begin.Add(time.Duration(size) * time.Second / time.Duration(l.perSecond))
	return l.free.Sub(now), true
}

// Slow bounds what the port carries in each direction, in bytes a second. Call it before the first packet.
func (p *Port) Slow(perSecond int) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.line = &line{perSecond: perSecond}
}

// NewNetwork returns a network without ports. Callers must call Close.
func NewNetwork(q Quality) *Network {
	return &Network{
		quality: q, owners: map[netip.Addr]*Port{}, cuts: map[[2]*Port]bool{},
		random: rand.Float64, delayed: newQueue(),
	}
}

// SetQuality changes the quality for packets sent from now on.
func (n *Network) SetQuality(q Quality) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.quality = q
}

// Dropped returns the number of packets lost, cut, or without a receiver.
func (n *Network) Dropped() int64 { return n.dropped.Load() }

// Plug gives a namespace a device on the network. Error: Unsupported without TUN devices.
func (n *Network) Plug(s *Space, name string) (*Port, error) {
	d, err := openTUN(s, name)
	if err != nil {
		return nil, err
	}
	p := &Port{network: n, space: s, name: name, device: d}
	if err := s.IP("link", "set", name, "mtu", "1500", "txqueuelen", "5000", "multicast", "on", "up"); err != nil {
		_ = d.Close()
		return nil, fault.New("netns.Plug", fault.Unsupported, "%w", err)
	}
	n.mu.Lock()
	n.ports = append(n.ports, p)
	n.mu.Unlock()
	n.work.Go(p.read) // until Close
	return p, nil
}

// Uplink makes the port the way to all addresses outside the network.
func (p *Port) Uplink() {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.network.uplink = p
}

// Add gives the device addresses. A prefix of 32 or 128 bits has no neighbours: the host needs a
// route.
func (p *Port) Add(addresses ...netip.Prefix) error {
	var commands strings.Builder
	for _, a := range addresses {
		fmt.Fprintf(&commands, "addr add %s dev %s", a, p.name)
		if a.Addr().Is6() {
			commands.WriteString(" nodad") // no neighbour could object
		}
		commands.WriteByte('\n')
	}
	if err := p.space.Run(commands.String(), "ip", "-batch", "-"); err != nil {
		return err
	}
	for _, a := range addresses {
		if err := p.space.awaitLocal(a.Addr()); err != nil {
			return err
		}
		p.Route(a.Addr())
	}
	return nil
}

// Route sends packets for an address to the port: the host forwards them, or has the address.
func (p *Port) Route(a netip.Addr) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.network.owners[a] = p
}

// Remove takes an address from the device. Packets to it get lost.
func (p *Port) Remove(a netip.Prefix) error {
	p.network.mu.Lock()
	delete(p.network.owners, a.Addr())
	p.network.mu.Unlock()
	return p.space.IP("addr", "del", a.String(), "dev", p.name)
}

// Default routes all addresses of both families through the device.
func (p *Port) Default() error {
	if err := p.space.IP("-4", "route", "replace", "default", "dev", p.name, "scope", "link"); err != nil {
		return err
	}
	return p.space.IP("-6", "route", "replace", "default", "dev", p.name)
}

// Cut drops all packets between two ports in one direction, until Mend. The sender notices
// nothing, as with a broken switch and unlike with a closed port.
func (n *Network) Cut(from, to *Port) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[[2]*Port{from, to}] = true
}

// Mend ends a Cut. Without a cut it does nothing.
func (n *Network) Mend(from, to *Port) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.cuts, [2]*Port{from, to})
}

// Close removes all devices and drops all packets under way.
func (n *Network) Close() {
	n.mu.RLock()
	ports := n.ports
	n.mu.RUnlock()
	for _, p := range ports {
		_ = p.device.Close() // ends read
	}
	n.work.Wait()
	n.delayed.close()
}

// read carries the packets of the host until the device ends.
func (p *Port) read() {
	packet := make([]byte, packetSize)
	for {
		size, err := p.device.Read(packet)
		if err != nil {
			return
		}
		p.network.carry(p, packet[:size])
	}
}

// carry delivers a packet to each receiver. It keeps no reference to the packet.
func (n *Network) carry(from *Port, packet []byte) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	to, ok := destination(packet)
	switch port, known := n.owners[to]; {
	case !ok:
		n.dropped.Add(1)
	case to.IsMulticast():
		for _, port := range n.ports {
			if port != from {
				n.pass(from, port, packet)
			}
		}
	case known:
		n.pass(from, port, packet)
	case n.uplink != nil && n.uplink != from:
		n.pass(from, n.uplink, packet)
	default:
		n.dropped.Add(1)
	}
}

// pass delivers a packet to one port, now or later. Callers hold mu.
func (n *Network) pass(from, to *Port, packet []byte) {
	q := n.quality
	if n.cuts[[2]*Port{from, to}] || q.Loss > 0 && n.random() < q.Loss {
		n.dropped.Add(1)
		return
	}
	out, sent := from.line.take(len(packet), time.Now())
	in, heard := to.line.take(len(packet), time.Now())
	if !sent || !heard {
		n.dropped.Add(1)
		return
	}
	delay := q.Delay + max(out, in)
	if q.Far != nil {
		delay += q.Far(from, to)
	}
	if q.Reorder > 0 && n.random() < q.Reorder {
		delay += q.Late
	}
	if delay == 0 {
		_, _ = to.device.Write(packet) // refused packets are lost
		return
	}
	if !n.delayed.add(to.device, packet, time.Now().Add(delay)) {
		n.dropped.Add(1)
	}
}

// destination returns the destination address of an IP packet.
func destination(packet []byte) (netip.Addr, bool) {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[16:20])), true
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[24:40])), true
	default:
		return netip.Addr{}, false
	}
}
