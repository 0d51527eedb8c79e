package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/netns"
)

// world is the network of one act, with all observations.
type world struct {
	Config
	dir      string
	began    time.Time
	internet *netns.Network
	networks []*netns.Network // all of them
	hosts    []*host
	peers    []*peer
	truth    *truth

	mu     sync.Mutex // guards broken
	broken []string
}

func newWorld(c Config, dir string) *world {
	w := &world{Config: c, dir: dir, began: time.Now(), truth: newTruth()}
	w.internet = w.network(netns.Quality{})
	return w
}

// network adds a network without hosts.
func (w *world) network(q netns.Quality) *netns.Network {
	n := netns.NewNetwork(q)
	w.networks = append(w.networks, n)
	return n
}

// close ends all processes, then the networks and the namespaces.
func (w *world) close() {
	w.truth.stop()
	var work sync.WaitGroup
	for _, p := range w.peers {
		work.Go(p.close)
	}
	work.Wait()
	for _, n := range w.networks {
		n.Close()
	}
	for _, h := range w.hosts {
		h.space.Close()
	}
}

// say prints a step.
func (w *world) say(format string, args ...any) {
	fmt.Fprintf(w.Progress, "%7.1f s  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// violated records a broken property.
func (w *world) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.say("BROKEN   %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, text)
}

func (w *world) found() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
}

// judge checks the properties of every scenario: no wrong complete answer, no distrust, no peer
// that ended by itself.
func (w *world) judge(ctx context.Context) {
	w.truth.stop()
	for _, line := range w.truth.report() {
		w.say("%s", line)
	}
	for _, lie := range w.truth.lies() {
		w.violated("%s", lie)
	}
	for _, p := range w.peers {
		p.count(ctx)
		if len(p.distrusted) > 0 {
			w.violated("%s distrusted honest peers: %s", p.name, strings.Join(p.distrusted, ", "))
		}
		if err := p.failure(); err != nil {
			w.violated("%v", err)
		}
	}
}

// host is a host with one device, eth0.
type host struct {
	name  string
	space *netns.Space
	port  *netns.Port
	addrs []netip.Prefix
}

// host adds a host to a network, with addresses in the form address/bits.
func (w *world) host(n *netns.Network, name string, addresses ...string) (*host, error) {
	space, err := netns.NewSpace()
	if err != nil {
		return nil, err
	}
	h := &host{name: name, space: space}
	w.hosts = append(w.hosts, h)
	if h.port, err = n.Plug(space, "eth0"); err != nil {
		return nil, err
	}
	return h, h.settle(addresses)
}

// settle gives the host addresses and a default route.
func (h *host) settle(addresses []string) error {
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a)
		if err != nil {
			return fault.As("lab.settle", fault.Invalid, err)
		}
		h.addrs = append(h.addrs, prefix)
	}
	if err := h.port.Add(h.addrs...); err != nil {
		return err
	}
	return h.port.Default()
}

// move replaces all addresses of a host, like a new access network.
func (h *host) move(addresses ...string) error {
	for _, a := range h.addrs {
		if err := h.port.Remove(a); err != nil {
			return err
		}
	}
	h.addrs = nil
	return h.settle(addresses) // the kernel dropped the routes with the last address
}

// router joins a network of private addresses to the internet.
type router struct {
	*host
	inside *netns.Network
}

// nat is the kind of address translation of a router.
type nat = netns.NAT

const (
	preserving = netns.Preserving
	random     = netns.Random
)

// router adds a router with a public address and an inner network.
func (w *world) router(name, wan string, kind nat) (*router, error) {
	outside, err := w.host(w.internet, name, wan)
	if err != nil {
		return nil, err
	}
	r := &router{host: outside, inside: w.network(netns.Quality{})}
	return r, r.space.Forward(r.inside, kind)
}

// delegate routes a public IPv6 address, untranslated, to a host behind the router.
func (r *router) delegate(a netip.Addr) error {
	r.port.Route(a)
	return r.space.IP("-6", "route", "add", a.String(), "dev", "lan0")
}
