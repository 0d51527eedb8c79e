package night

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/platform/cities"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/testnet/netns"
	"github.com/blackhole/blackhole/testnet/process"
)

// Ports of every honest peer: on the loopback of its host, and for other peers.
const (
	httpAddress = "127.0.0.1:8500"
	grpcAddress = "127.0.0.1:8502"
	dnsAddress  = "127.0.0.1:8600"
	goodsPort   = 9000 // what a seller sells is at its loopback
	shopPort    = 80   // what a seller shows is at its public address
	listenPort  = 4801
)

// Kinds of places.
const (
	seed   = "seed"   // a server whose address the others know
	server = "server" // a server that may be a member of the group
	relay  = "relay"  // a server behind 2 Mbit/s
	desk   = "desk"   // one of an office behind one address
	leaf   = "leaf"   // a peer of the office that keeps nothing
	home   = "home"   // behind a NAT that preserves ports
	hard   = "hard"   // behind a NAT with random ports
	idle   = "idle"   // a server without clients
)

const (
	seeds     = 2
	founders  = 5                    // of the group: three of them vote
	slowLink  = 2e6 / 8              // bytes a second
	lossPart  = 0.001                // of all packets, at all times
	nearby    = 2 * time.Millisecond // of every way, in one direction
	fibre     = 200.0 / 1.4          // km in a millisecond, with the detours of cables
	hostileOf = 3                    // every third place is of an attacker
	citiesOf  = 100                  // the largest ones
	outsides  = 3                    // addresses of an attacker, in networks of their own
)

// site is the place of one peer, or of one attacker.
type site struct {
	name, kind string
	city       cities.City
	space      *netns.Space
	port       *netns.Port  // of its host
	way        *netns.Port  // to all outside: its own, or that of its router
	outside    netip.Addr   // by which others see it
	froms      []netip.Addr // of an attacker
	process    atomic.Pointer[process.Process]
	id         string
}

// world is who lives where. It is the ground of the peers.
type world struct {
	internet *netns.Network
	insides  []*netns.Network
	spaces   []*netns.Space
	peers    []*site
	hostile  []*site
	office   *office

	far map[*netns.Port]geo.Point // complete before the first packet
}

// office is a router with several hosts behind it.
type office struct {
	inside *netns.Network
	way    *netns.Port
	out    netip.Addr
	hosts  int
}

// kindOf is the kind of the i-th of n honest peers.
func kindOf(i, n int) string {
	first := []string{seed, seed, server, server, server, relay}
	switch {
	case i < len(first):
		return first[i]
	case i == n-1:
		return idle
	default:
		return []string{home, hard, desk, leaf, desk, server}[(i-len(first))%6]
	}
}

// newWorld places n peers and attackers by a seed. Callers must close it, after an error too.
func newWorld(n int, rng *rand.Rand) (*world, error) {
	w := &world{far: map[*netns.Port]geo.Point{}}
	w.internet = netns.NewNetwork(netns.Quality{})
	all, err := cities.All()
	if err != nil {
		return w, err
	}
	honest := n - n/hostileOf
	for i := range n {
		s := &site{city: all[rng.IntN(citiesOf)], name: fmt.Sprintf("attacker-%d", i-honest+1)}
		if i < honest {
			s.kind, s.name = kindOf(i, honest), fmt.Sprintf("peer-%d", i+1)
			w.peers = append(w.peers, s)
		} else {
			w.hostile = append(w.hostile, s)
		}
		if err := w.build(s, i); err != nil {
			return w, err
		}
	}
	w.Lose(0)
	return w, nil
}

// build gives a site its host and its way to the internet.
func (w *world) build(s *site, i int) (err error) {
	switch s.kind {
	case home, hard:
		kind := netns.Preserving
		if s.kind == hard {
			kind = netns.Random
		}
		o, err := w.router(s.city, fmt.Sprintf("62.%d.1.1", 10+i), kind)
		if err != nil {
			return err
		}
		return w.behind(s, o)
	case desk, leaf:
		if w.office == nil {
			if w.office, err = w.router(s.city, "80.20.1.1", netns.Preserving); err != nil {
				return err
			}
		}
		return w.behind(s, w.office)
	}
	if s.space, s.port, err = w.host(w.internet, s.city); err != nil {
		return err
	}
	s.way = s.port
	for k, first := range []string{"51", "93", "176"}[:outsides] {
		a := netip.MustParseAddr(fmt.Sprintf("%s.%d.7.1", first, 20+i))
		s.froms = append(s.froms, a)
		if err := s.port.Add(netip.PrefixFrom(a, 32)); err != nil {
			return err
		}
		if s.kind != "" && k == 0 {
			break // a server has one
		}
	}
	s.outside = s.froms[0]
	if s.kind == relay {
		s.port.Slow(slowLink)
	}
	return s.port.Default()
}

// host adds a namespace with a device on a network.
func (w *world) host(on *netns.Network, at cities.City) (*netns.Space, *netns.Port, error) {
	space, err := netns.NewSpace()
	if err != nil {
		return nil, nil, err
	}
	w.spaces = append(w.spaces, space)
	port, err := on.Plug(space, "eth0")
	if err == nil {
		w.far[port] = at.Point
	}
	return space, port, err
}

// router adds a router with a public address.
func (w *world) router(at cities.City, address string, kind netns.NAT) (*office, error) {
	space, port, err := w.host(w.internet, at)
	if err != nil {
		return nil, err
	}
	o := &office{inside: netns.NewNetwork(netns.Quality{}), way: port, out: netip.MustParseAddr(address)}
	w.insides = append(w.insides, o.inside)
	if err := port.Add(netip.PrefixFrom(o.out, 32)); err != nil {
		return nil, err
	}
	if err := port.Default(); err != nil {
		return nil, err
	}
	return o, space.Forward(o.inside, kind)
}

// behind puts a site behind a router.
func (w *world) behind(s *site, o *office) (err error) {
	if s.space, s.port, err = w.host(o.inside, s.city); err != nil {
		return err
	}
	s.way, s.outside = o.way, o.out
	o.hosts++
	if err := s.port.Add(netip.MustParsePrefix(fmt.Sprintf("192.168.1.%d/24", 9+o.hosts))); err != nil {
		return err
	}
	return s.port.Default()
}

// delay is the time of a packet between two cities.
func (w *world) delay(from, to *netns.Port) time.Duration {
	km := geo.Distance(w.far[from], w.far[to]) / 1000
	return nearby + time.Duration(km/fibre*float64(time.Millisecond))
}

// Places implements nemesis.Ground.
func (w *world) Places(int) (all []process.Place, err error) {
	for _, s := range w.peers {
		all = append(all, process.Place{Listen: process.Everywhere, HTTP: httpAddress, GRPC: grpcAddress, DNS: dnsAddress, Within: s.space.Do})
	}
	return all, nil
}

// Dial implements nemesis.Ground.
func (w *world) Dial(i int) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		return w.peers[i].space.Dial(ctx, address)
	}
}

// Cut implements nemesis.Ground. A cut from a host of the office is one from the office.
func (w *world) Cut(from, to int) { w.between(from, to, (*netns.Network).Cut) }

// Mend implements nemesis.Ground.
func (w *world) Mend(from, to int) { w.between(from, to, (*netns.Network).Mend) }

func (w *world) between(from, to int, do func(n *netns.Network, from, to *netns.Port)) {
	a, b := w.peers[from], w.peers[to]
	if a.way == b.way {
		do(w.office.inside, a.port, b.port)
		return
	}
	do(w.internet, a.way, b.way)
}

// Lose implements nemesis.Ground.
func (w *world) Lose(part float64) {
	w.internet.SetQuality(netns.Quality{Loss: max(part, lossPart), Far: w.delay})
}

// Close implements nemesis.Ground.
func (w *world) Close() {
	w.internet.Close()
	for _, n := range w.insides {
		n.Close()
	}
	for _, s := range w.spaces {
		s.Close()
	}
}

// addresses are those by which others dial a server.
func (s *site) addresses() []string {
	return []string{
		fmt.Sprintf("/ip4/%s/udp/%d/quic-v1/p2p/%s", s.outside, listenPort, s.id),
		fmt.Sprintf("/ip4/%s/tcp/%d/p2p/%s", s.outside, listenPort, s.id),
	}
}

// public reports whether strangers can dial a peer.
func (s *site) public() bool { return s.way == s.port }

// table says who lives where.
func (w *world) table() (lines []string) {
	for _, s := range append(w.peers[:len(w.peers):len(w.peers)], w.hostile...) {
		kind := s.kind
		if kind == "" {
			kind = "hostile"
		}
		lines = append(lines, fmt.Sprintf("%-11s %-8s %-15s %s", s.name, kind, s.outside, s.city.Name))
	}
	return lines
}
