package p2p

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// ReachMode says whether strangers can connect to this peer.
type ReachMode string

// The modes.
const (
	ReachableAuto    ReachMode = "auto"    // other peers test it
	ReachablePublic  ReachMode = "public"  // the operator knows: no NAT and no firewall, or an open port
	ReachablePrivate ReachMode = "private" // the operator knows: behind NAT or a firewall
)

// maxAnnounce bounds the announced addresses, which travel in every signed peer record.
const maxAnnounce = 16

// ReachConfig states how other peers reach this one. Outside the profile public only Announce has an effect.
type ReachConfig struct {
	// Announce are addresses at which others can connect, besides those that this peer finds: the outer address
	// of a forwarded port, or of a cloud host with 1:1 NAT. At most 16.
	Announce []multiaddr.Multiaddr
	Mode     ReachMode // empty: auto
	Relay    RelayConfig
}

// complete sets defaults. Error: Invalid with the field.
func (c ReachConfig) complete(open bool) (ReachConfig, error) {
	if c.Mode == "" {
		c.Mode = ReachableAuto
	}
	if !slices.Contains([]ReachMode{ReachableAuto, ReachablePublic, ReachablePrivate}, c.Mode) {
		return c, fault.Invalidf("reach", string(c.Mode), "must be auto, public or private")
	}
	if len(c.Announce) > maxAnnounce {
		return c, fault.Invalidf("announce", len(c.Announce), "must have at most %d addresses", maxAnnounce)
	}
	for i, a := range c.Announce {
		if problem := unannounceable(a, open); problem != "" {
			return c, fault.Invalidf("announce["+strconv.Itoa(i)+"]", a.String(), "%s", problem)
		}
	}
	if len(c.Announce) > 0 && c.Mode == ReachablePrivate {
		return c, fault.Invalidf("announce", len(c.Announce), "must be empty with reach private: an announced address is reachable")
	}
	relay, err := c.Relay.complete()
	c.Relay = relay
	return c, fault.In("relay", err)
}

// unannounceable explains why others cannot connect to an address. It returns "" for a good address.
func unannounceable(a multiaddr.Multiaddr, open bool) string {
	const form = "use the form /ip4/203.0.113.7/udp/4801/quic-v1 or /dns/host.example.com/tcp/4801"
	var codes []int
	for _, c := range a {
		codes = append(codes, c.Code())
	}
	host := []int{multiaddr.P_IP4, multiaddr.P_IP6, multiaddr.P_DNS, multiaddr.P_DNS4, multiaddr.P_DNS6}
	tcp := len(codes) == 2 && codes[1] == multiaddr.P_TCP
	quic := len(codes) == 3 && codes[1] == multiaddr.P_UDP && codes[2] == multiaddr.P_QUIC_V1
	switch {
	case !tcp && !quic, !slices.Contains(host, codes[0]):
		return "needs a host and a port: " + form
	case a[1].Value() == "0":
		return "must not have port 0"
	case manet.IsIPUnspecified(a):
		return "must be an address that others can dial, not a listen address"
	case open && !manet.IsPublicAddr(a):
		return "must be a public address: peers of the profile public dial no private one"
	}
	return ""
}

// addrs adds the announced addresses to the addresses that the host found.
func (c ReachConfig) addrs(found []multiaddr.Multiaddr) []multiaddr.Multiaddr {
	return multiaddr.Unique(slices.Concat(c.Announce, found))
}

// presumption is the reach of a peer before the first test by others. Announced addresses count, and so does
// a public address of the peer that starts a network, whom nobody can test yet. Unknown starts the search for
// relays at once.
func (c *Config) presumption(h host.Host) network.Reachability {
	first := len(c.Bootstrap) == 0 && slices.ContainsFunc(h.Addrs(), manet.IsPublicAddr)
	if first || len(c.Reach.Announce) > 0 {
		return network.ReachabilityPublic
	}
	return network.ReachabilityUnknown
}

// ReachState says how strangers reach a peer.
type ReachState string

// The states.
const (
	ReachLocal       ReachState = "local"       // the profile expects no NAT
	ReachChecking    ReachState = "checking"    // just started
	ReachPublic      ReachState = "public"      // directly
	ReachRelayed     ReachState = "relayed"     // through a relay, or through a hole punched with its help
	ReachUnreachable ReachState = "unreachable" // not at all
)

// ReachStates lists all states.
func ReachStates() []string {
	return []string{string(ReachLocal), string(ReachChecking), string(ReachPublic), string(ReachRelayed), string(ReachUnreachable)}
}

// reachSettle is the time without result until a peer counts as unreachable. A relay is usually found within
// seconds.
const reachSettle = time.Minute

// Reach says how strangers reach this peer.
type Reach struct {
	State     ReachState
	Text      string // one sentence for people
	Since     time.Time
	Relays    []peer.ID // relays with an address of this peer
	Punched   int       // hole punches that led to a direct connection, since the start
	Unpunched int       // hole punches that failed
}

// reach derives Reach from the events of the host. It is safe for concurrent use.
type reach struct {
	profile Profile
	open    bool
	leaf    bool
	config  ReachConfig

	mu       sync.Mutex
	reported network.Reachability // of AutoNAT v1, the settings, or the presumption
	dialed   []string             // own addresses that others reached (AutoNAT v2)
	missed   []string             // own addresses that others could not reach
	untested int                  // own public addresses without a result
	hardNAT  bool                 // the NAT uses another port for each peer
	relays   []peer.ID
	refusal  string // of the last relay that was asked; empty: it agreed, or none was asked
	punched  int
	failed   int
	state    ReachState
	changed  time.Time // of state
	waitFrom time.Time // since when neither a direct way nor a relay exists; zero: one exists
}

func newReach(c *Config, open bool, now time.Time) *reach {
	r := &reach{profile: c.Profile, open: open, leaf: c.Leaf, config: c.Reach, waitFrom: now, changed: now}
	r.state = r.derive(now)
	return r
}

// event takes an event of libp2p at a time.
func (r *reach) event(e any, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := e.(type) {
	case event.EvtLocalReachabilityChanged:
		r.reported = e.Reachability
	case event.EvtHostReachableAddrsChanged:
		r.dialed, r.missed, r.untested = texts(e.Reachable), texts(e.Unreachable), len(e.Unknown)
	case event.EvtAutoRelayAddrsUpdated:
		r.relays = relaysOf(e.RelayAddrs)
	case event.EvtNATDeviceTypeChanged:
		if e.TransportProtocol == network.NATTransportUDP {
			r.hardNAT = e.NatDeviceType == network.NATDeviceTypeEndpointDependent
		}
	}
	r.update(now)
}

// HolePunchFinished implements holepunch.MetricsTracer.
func (r *reach) HolePunchFinished(_ string, _ int, _, _ []multiaddr.Multiaddr, direct network.ConnMultiaddrs) {
	r.punch(direct != nil)
}

// DirectDialFinished implements holepunch.MetricsTracer. A dial before the hole punch needs no punch if it
// succeeds.
func (r *reach) DirectDialFinished(bool) {}

// reserved takes the answer of a relay.
func (r *reach) reserved(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusal = ""
	if err != nil {
		r.refusal = err.Error()
	}
}

// punch counts the end of a hole punch.
func (r *reach) punch(direct bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if direct {
		r.punched++
	} else {
		r.failed++
	}
}

// tick notices the end of reachSettle.
func (r *reach) tick(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.update(now)
}

// update follows a change. The caller holds mu.
func (r *reach) update(now time.Time) {
	switch {
	case r.direct() || len(r.relays) > 0:
		r.waitFrom = time.Time{}
	case r.waitFrom.IsZero():
		r.waitFrom = now
	}
	if s := r.derive(now); s != r.state {
		r.state, r.changed = s, now
	}
}

// direct reports whether strangers can connect without a relay. The caller holds mu.
func (r *reach) direct() bool {
	if len(r.dialed) > 0 {
		return true
	}
	contradicted := r.config.Mode == ReachablePublic && len(r.missed) > 0 && r.untested == 0
	return r.reported == network.ReachabilityPublic && !contradicted
}

func (r *reach) derive(now time.Time) ReachState {
	switch {
	case !r.open:
		return ReachLocal
	case r.direct():
		return ReachPublic
	case len(r.relays) > 0:
		return ReachRelayed
	case now.Sub(r.waitFrom) < reachSettle:
		return ReachChecking
	default:
		return ReachUnreachable
	}
}

// confirmed reports whether others reached this peer although AutoNAT v1 has not found it public: v1 asks only
// peers with public addresses, so it never learns of a lone server between peers behind NAT.
func (r *reach) confirmed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.dialed) > 0 && r.reported != network.ReachabilityPublic && r.config.Mode == ReachableAuto
}

// view describes the reach now.
func (r *reach) view() Reach {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Reach{State: r.state, Text: r.text(), Since: r.changed, Punched: r.punched, Unpunched: r.failed}
	if r.state == ReachRelayed { // reservations of a peer that became public end later
		out.Relays = slices.Clone(r.relays)
	}
	return out
}

// report keeps the condition of an unreachable peer, and of one that announces addresses without an answer.
func (r *reach) report(conditions *condition.Set) {
	v := r.view()
	closed := v.State == ReachRelayed && len(r.config.Announce) > 0
	if v.State == ReachUnreachable || closed {
		conditions.Raise(condition.NotReachable, "%s", v.Text)
	} else {
		conditions.Clear(condition.NotReachable)
	}
}

// text is the sentence of the state. The caller holds mu.
func (r *reach) text() string {
	switch r.state {
	case ReachLocal:
		if r.leaf {
			return "a leaf: it dials out, and nobody connects to it"
		}
		return "peers connect directly in profile " + string(r.profile)
	case ReachPublic:
		return "public: other peers connect directly"
	case ReachRelayed:
		return "behind NAT, relayed by " + shortIDs(r.relays) + "; " + r.punchText()
	case ReachChecking:
		return "checking: no other peer has connected so far, and no relay is found yet"
	}
	return "not reachable: " + r.missing()
}

func (r *reach) punchText() string {
	tried := r.punched + r.failed
	switch {
	case len(r.config.Announce) > 0:
		return "other peers cannot connect to the announced addresses: check them and the forwarded port"
	case r.punched > 0:
		return fmt.Sprintf("hole punching works (%d of %d)", r.punched, tried)
	case tried > 0 && r.hardNAT:
		return fmt.Sprintf("hole punching failed (0 of %d), because the NAT uses another port for each peer", tried)
	case tried > 0:
		return fmt.Sprintf("hole punching failed (0 of %d), so connections stay relayed", tried)
	default:
		return "no hole punch tried yet"
	}
}

// missing says which step fails, and what to do.
func (r *reach) missing() string {
	const remedy = "forward the port and announce the outer address, or connect to a peer that relays"
	relay := "no relay was found"
	if r.refusal != "" {
		relay = "the last relay refused (" + r.refusal + ")"
	}
	switch {
	case r.config.Mode == ReachablePublic && len(r.missed) > 0:
		return "connections.reach is public, but other peers cannot connect to " + strings.Join(r.missed, ", ")
	case len(r.config.Announce) > 0:
		return "other peers cannot connect to the announced addresses, and " + relay + ": check the forwarded port"
	case r.reported == network.ReachabilityPrivate:
		return "this peer is behind NAT or a firewall, and " + relay + ": " + remedy
	default:
		return "no other peer could test this peer, and " + relay + ": " + remedy
	}
}

func texts(addrs []multiaddr.Multiaddr) []string {
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// relaysOf returns the relays of circuit addresses, sorted.
func relaysOf(addrs []multiaddr.Multiaddr) []peer.ID {
	var out []peer.ID
	for _, a := range addrs {
		via, _ := multiaddr.SplitFunc(a, func(c multiaddr.Component) bool { return c.Code() == multiaddr.P_CIRCUIT })
		if id, err := peer.IDFromP2PAddr(via); err == nil && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, compareIDs)
	return out
}

// shortIDs names peers by the ends of their ids.
func shortIDs(ids []peer.ID) string {
	var out []string
	for _, id := range ids {
		s := id.String()
		out = append(out, "…"+s[max(0, len(s)-8):])
	}
	return strings.Join(out, " and ")
}

// Reach says how strangers reach this peer.
func (n *Node) Reach() Reach { return n.reach.view() }

// Connections counts the open connections: direct ones, and ones through a relay.
func (n *Node) Connections() (direct, relayed int) {
	for _, c := range n.host.Network().Conns() {
		if c.Stat().Limited {
			relayed++
		} else {
			direct++
		}
	}
	return direct, relayed
}

// followReach keeps Reach and the condition current until ctx ends.
func (n *Node) followReach(ctx context.Context, c *Config) error {
	sub, err := n.host.EventBus().Subscribe([]any{
		new(event.EvtLocalReachabilityChanged), new(event.EvtHostReachableAddrsChanged),
		new(event.EvtAutoRelayAddrsUpdated), new(event.EvtNATDeviceTypeChanged),
	}, eventbus.BufSize(64), eventbus.Name("blackhole/reach"))
	if err != nil {
		return err
	}
	found, err := n.host.EventBus().Emitter(new(event.EvtLocalReachabilityChanged), eventbus.Stateful)
	if err != nil {
		_ = sub.Close()
		return err
	}
	if n.reach.open && c.Reach.Mode == ReachableAuto {
		_ = found.Emit(event.EvtLocalReachabilityChanged{Reachability: c.presumption(n.host)})
	}
	lone := privacy{last: time.Now()}
	n.work.Go(func() {
		defer sub.Close()
		defer found.Close()
		settle := time.NewTicker(reachSettle / 4)
		defer settle.Stop()
		for {
			select {
			case e := <-sub.Out():
				n.reach.event(e, time.Now())
			case <-settle.C:
				n.reach.tick(time.Now())
			case <-ctx.Done():
				return
			}
			if n.reach.confirmed() {
				_ = found.Emit(event.EvtLocalReachabilityChanged{Reachability: network.ReachabilityPublic})
			}
			n.reach.report(c.Conditions)
			if n.reach.open {
				lone.look(n.punch.found(), remotes(n.host), time.Now(), c.Conditions)
			}
		}
	})
	return nil
}

// Serving reports whether this peer is a server of the DHT. Only servers appear in routing tables, so only they
// can be keepers. A peer behind NAT is no server. Changed tells of changes.
func (r *Routing) Serving() bool { return r.serving.Load() }

// followMode keeps Serving current until ctx ends: a server handles the DHT's protocol.
func (n *Node) followMode(ctx context.Context, kad protocol.ID) error {
	sub, err := n.host.EventBus().Subscribe(new(event.EvtLocalProtocolsUpdated), eventbus.Name("blackhole/mode"))
	if err != nil {
		return err
	}
	n.routing.setServing(n.host, kad)
	n.work.Go(func() {
		defer sub.Close()
		for {
			select {
			case <-sub.Out():
				n.routing.setServing(n.host, kad)
			case <-ctx.Done():
				return
			}
		}
	})
	return nil
}

func (r *Routing) setServing(h host.Host, kad protocol.ID) {
	serves := slices.Contains(h.Mux().Protocols(), kad)
	if r.serving.Swap(serves) != serves {
		r.notify(false)
	}
}
