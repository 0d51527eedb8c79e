// Package reach makes this peer reachable for strangers, and says how they reach it: directly, by a hole punched with the help
// of a relay, or through the relay.
package reach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	hostconfig "github.com/libp2p/go-libp2p/config"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"go.uber.org/fx"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Mode says whether strangers can connect to this peer.
type Mode string

// The modes.
const (
	Auto    Mode = "auto"    // other peers test it
	Public  Mode = "public"  // the operator knows: no NAT and no firewall, or an open port
	Private Mode = "private" // the operator knows: behind NAT or a firewall
)

// maxAnnounce bounds the announced addresses, which travel in every signed peer record.
const maxAnnounce = 16

// Config states how other peers reach this one. Outside the profile public only Announce has an effect.
type Config struct {
	// Announce are addresses at which others can connect, besides those that this peer finds: the outer address
	// of a forwarded port, or of a cloud host with 1:1 NAT. At most 16.
	Announce []multiaddr.Multiaddr
	Mode     Mode // empty: auto
	Relay    RelayConfig
}

// Complete sets defaults. open: strangers on the Internet are to reach this peer. Error: Invalid with the field.
func (c Config) Complete(open bool) (Config, error) {
	c.Mode = cmp.Or(c.Mode, Auto)
	if !slices.Contains([]Mode{Auto, Public, Private}, c.Mode) {
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
	if len(c.Announce) > 0 && c.Mode == Private {
		return c, fault.Invalidf("announce", len(c.Announce), "must be empty with reach private: an announced address is reachable")
	}
	c.Relay = c.Relay.complete()
	return c, nil
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
func (c Config) addrs(found []multiaddr.Multiaddr) []multiaddr.Multiaddr {
	return multiaddr.Unique(slices.Concat(c.Announce, found))
}

// State says how strangers reach a peer.
type State string

// The states.
const (
	StateLocal       State = "local"       // the profile expects no NAT
	StateChecking    State = "checking"    // just started
	StatePublic      State = "public"      // directly
	StateRelayed     State = "relayed"     // through a relay, or through a hole punched with its help
	StateUnreachable State = "unreachable" // not at all
)

// States lists all states.
func States() []string {
	return []string{string(StateLocal), string(StateChecking), string(StatePublic), string(StateRelayed), string(StateUnreachable)}
}

// reachSettle is the time without result until a peer counts as unreachable. A relay is usually found within
// seconds.
const reachSettle = time.Minute

// Status says how strangers reach this peer.
type Status struct {
	State     State
	Text      string // one sentence for people
	Since     time.Time
	Relays    []peer.ID // relays with an address of this peer
	Punched   int       // hole punches that led to a direct connection, since the start
	Unpunched int       // hole punches that failed
}

// Settings are the settings of a peer that its profile gives, and what it tells about itself.
type Settings struct {
	Profile    string // for people
	Open       bool   // strangers on the Internet are to reach this peer
	Leaf       bool   // nobody connects to this peer
	First      bool   // this peer has no bootstrap peer: it starts a network
	Conditions *condition.Set
}

// Reach derives Status from the events of the host. It is safe for concurrent use.
type Reach struct {
	config   Config
	settings Settings
	expects  bool // strangers: the profile is open, and this peer is no leaf
	relays   *relaySource
	observed basichost.ObservedAddrsManager // set by the host
	punch    *puncher                       // nil outside open profiles
	sub      event.Subscription
	found    event.Emitter // of what this peer presumes

	mu       sync.Mutex
	reported network.Reachability // of AutoNAT v1, the settings, or the presumption
	dialed   []string             // own addresses that others reached (AutoNAT v2)
	missed   []string             // own addresses that others could not reach
	untested int                  // own public addresses without a result
	hardNAT  bool                 // the NAT uses another port for each peer
	by       []peer.ID            // the relays
	refusal  string               // of the last relay that was asked; empty: it agreed, or none was asked
	punched  int
	failed   int
	state    State
	changed  time.Time // of state
	waitFrom time.Time // since when neither a direct way nor a relay exists; zero: one exists
}

// New expects a complete configuration. Configure, Attach, Relays, Follow and Run come next, in this order.
func New(c Config, s Settings, now time.Time) *Reach {
	r := &Reach{config: c, settings: s, expects: s.Open && !s.Leaf, relays: newRelaySource(), waitFrom: now, changed: now}
	r.state = r.derive(now)
	return r
}

// Configure sets up NAT traversal, which only the open Internet needs.
func (r *Reach) Configure(h *hostconfig.Config) {
	public, private := network.ReachabilityPublic, network.ReachabilityPrivate
	h.AddrsFactory = r.config.addrs
	switch {
	case r.settings.Leaf: // it can dial by way of relays, and nobody dials it
		h.Relay, h.ForceReachability, h.DisableIdentifyAddressDiscovery = true, &private, true
		h.AddrsFactory = func([]multiaddr.Multiaddr) []multiaddr.Multiaddr { return nil }
		return
	case !r.settings.Open:
		h.ForceReachability, h.DisableIdentifyAddressDiscovery = &public, true // AutoNAT has no servers here
		return
	}
	h.Relay = true
	h.EnableAutoRelay, h.AutoRelayOpts = true, r.relays.client(h.PrometheusRegisterer, r.reserved)
	h.UserFxOptions = append(h.UserFxOptions, fx.Invoke(func(o basichost.ObservedAddrsManager) { r.observed = o }))
	h.NATManager = basichost.NewNATManager
	h.EnableAutoNATv2 = true
	h.EnableService = true // the DHT's automatic mode depends on AutoNAT v1, served by this network's peers only
	h.DisableNonPublicAddrPublishing = true
	switch r.config.Mode {
	case Public:
		h.ForceReachability = &public
	case Private:
		h.ForceReachability = &private
	}
	h.EnableRelayService, h.RelayServiceOpts = !r.config.Relay.Off, r.config.Relay.service()
}

// Attach begins to punch holes for a configured host that does not listen yet.
func (r *Reach) Attach(h host.Host) (err error) {
	if r.settings.Open {
		r.punch, err = newPuncher(h, r.outer, r)
	}
	return err
}

// outer returns the announced addresses and those that at least one other peer observed: a wrong one costs a failed dial.
func (r *Reach) outer() []multiaddr.Multiaddr {
	if r.observed == nil {
		return r.config.Announce
	}
	return slices.Concat(r.config.Announce, r.observed.Addrs(1))
}

// Relays gives the table whose peers may be relays. It is called once.
func (r *Reach) Relays(t Table) { r.relays.set(t) }

// Close ends the hole punches under way, also without Run.
func (r *Reach) Close() error {
	if r.punch == nil {
		return nil
	}
	return r.punch.close()
}

// event takes an event of libp2p at a time. nil: time passed.
func (r *Reach) event(e any, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := e.(type) {
	case event.EvtLocalReachabilityChanged:
		r.reported = e.Reachability
	case event.EvtHostReachableAddrsChanged:
		r.dialed, r.missed, r.untested = texts(e.Reachable), texts(e.Unreachable), len(e.Unknown)
	case event.EvtAutoRelayAddrsUpdated:
		r.by = relaysOf(e.RelayAddrs)
	case event.EvtNATDeviceTypeChanged:
		if e.TransportProtocol == network.NATTransportUDP {
			r.hardNAT = e.NatDeviceType == network.NATDeviceTypeEndpointDependent
		}
	}
	r.update(now)
}

// HolePunchFinished implements holepunch.MetricsTracer.
func (r *Reach) HolePunchFinished(_ string, _ int, _, _ []multiaddr.Multiaddr, direct network.ConnMultiaddrs) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if direct != nil {
		r.punched++
	} else {
		r.failed++
	}
}

// DirectDialFinished implements holepunch.MetricsTracer. A dial before the hole punch needs no punch if it
// succeeds.
func (r *Reach) DirectDialFinished(bool) {}

// reserved takes the answer of a relay.
func (r *Reach) reserved(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusal = ""
	if err != nil {
		r.refusal = err.Error()
	}
}

// update follows a change. The caller holds mu.
func (r *Reach) update(now time.Time) {
	switch {
	case r.direct() || len(r.by) > 0:
		r.waitFrom = time.Time{}
	case r.waitFrom.IsZero():
		r.waitFrom = now
	}
	if s := r.derive(now); s != r.state {
		r.state, r.changed = s, now
	}
}

// direct reports whether strangers can connect without a relay. The caller holds mu.
func (r *Reach) direct() bool {
	if len(r.dialed) > 0 {
		return true
	}
	contradicted := r.config.Mode == Public && len(r.missed) > 0 && r.untested == 0
	return r.reported == network.ReachabilityPublic && !contradicted
}

func (r *Reach) derive(now time.Time) State {
	switch {
	case !r.expects:
		return StateLocal
	case r.direct():
		return StatePublic
	case len(r.by) > 0:
		return StateRelayed
	case now.Sub(r.waitFrom) < reachSettle:
		return StateChecking
	default:
		return StateUnreachable
	}
}

// confirmed reports whether others reached this peer although AutoNAT v1 has not found it public: v1 asks only
// peers with public addresses, so it never learns of a lone server between peers behind NAT.
func (r *Reach) confirmed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.dialed) > 0 && r.reported != network.ReachabilityPublic && r.config.Mode == Auto
}

// Status describes the reach now.
func (r *Reach) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Status{State: r.state, Text: r.text(), Since: r.changed, Punched: r.punched, Unpunched: r.failed}
	if r.state == StateRelayed { // reservations of a peer that became public end later
		out.Relays = slices.Clone(r.by)
	}
	return out
}

// report keeps the condition of an unreachable peer, and of one that announces addresses without an answer.
func (r *Reach) report() {
	v := r.Status()
	closed := v.State == StateRelayed && len(r.config.Announce) > 0
	if v.State == StateUnreachable || closed {
		r.settings.Conditions.Raise(condition.NotReachable, r.problem())
	} else {
		r.settings.Conditions.Clear(condition.NotReachable)
	}
}

// problem says why strangers cannot connect.
func (r *Reach) problem() fault.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.missing()
	if r.state == StateRelayed {
		p = fault.Problem{What: r.text(), Remedy: "Correct --announce, or the forwarded port"}
	}
	p.Effect = "strangers cannot connect to this peer"
	return p
}

// text is the sentence of the state. The caller holds mu.
func (r *Reach) text() string {
	switch r.state {
	case StateLocal:
		if r.settings.Leaf {
			return "a leaf: it dials out, and nobody connects to it"
		}
		return "peers connect directly in profile " + r.settings.Profile
	case StatePublic:
		return "public: other peers connect directly"
	case StateRelayed:
		return "behind NAT, relayed by " + shortIDs(r.by) + "; " + r.punchText()
	case StateChecking:
		return "checking: no other peer has connected so far, and no relay is found yet"
	}
	return "not reachable: " + r.missing().String()
}

func (r *Reach) punchText() string {
	tried := r.punched + r.failed
	switch {
	case len(r.config.Announce) > 0:
		return "other peers cannot connect to the announced addresses"
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

// missing says which step fails, and what to do. The caller holds mu.
func (r *Reach) missing() fault.Problem {
	const remedy = "Forward the port and announce the outer address (--announce), or connect to a peer that relays (--bootstrap)"
	relay := "no relay was found"
	if r.refusal != "" {
		relay = "the last relay refused (" + r.refusal + ")"
	}
	switch {
	case r.config.Mode == Public && len(r.missed) > 0:
		return fault.Problem{What: "connections.reach is public, but other peers cannot connect to " + strings.Join(r.missed, ", "), Remedy: "Correct the setting, or forward the port"}
	case len(r.config.Announce) > 0:
		return fault.Problem{What: "other peers cannot connect to the announced addresses, and " + relay, Remedy: "Correct --announce, or the forwarded port"}
	case r.reported == network.ReachabilityPrivate:
		return fault.Problem{What: "this peer is behind NAT or a firewall, and " + relay, Remedy: remedy}
	default:
		return fault.Problem{What: "no other peer could test this peer, and " + relay, Remedy: remedy}
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
	slices.Sort(out)
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

// Follow subscribes to the events of a host that listens, and tells it how strangers probably reach it. Run follows.
func (r *Reach) Follow(h host.Host) (err error) {
	r.sub, err = h.EventBus().Subscribe([]any{
		new(event.EvtLocalReachabilityChanged), new(event.EvtHostReachableAddrsChanged),
		new(event.EvtAutoRelayAddrsUpdated), new(event.EvtNATDeviceTypeChanged),
	}, eventbus.BufSize(64), eventbus.Name("blackhole/reach"))
	if err != nil {
		return err
	}
	if r.found, err = h.EventBus().Emitter(new(event.EvtLocalReachabilityChanged), eventbus.Stateful); err != nil {
		return errors.Join(err, r.sub.Close())
	}
	if r.expects && r.config.Mode == Auto {
		_ = r.found.Emit(event.EvtLocalReachabilityChanged{Reachability: r.presumption(h.Addrs())})
	}
	return nil
}

// presumption is the reach of a peer before the first test by others. Announced addresses count, and so does
// a public address of the peer that starts a network, whom nobody can test yet. Unknown starts the search for
// relays at once.
func (r *Reach) presumption(own []multiaddr.Multiaddr) network.Reachability {
	first := r.settings.First && slices.ContainsFunc(own, manet.IsPublicAddr)
	if first || len(r.config.Announce) > 0 {
		return network.ReachabilityPublic
	}
	return network.ReachabilityUnknown
}

// Run keeps Status and the conditions current until ctx ends.
func (r *Reach) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	if r.punch != nil {
		work.Go(func() { r.punch.run(ctx) })
	}
	defer r.sub.Close()
	defer r.found.Close()
	lone := privacy{last: time.Now()}
	settle := time.NewTicker(reachSettle / 4)
	defer settle.Stop()
	for {
		select {
		case e := <-r.sub.Out():
			r.event(e, time.Now())
		case <-settle.C:
			r.event(nil, time.Now())
		case <-ctx.Done():
			return
		}
		if r.confirmed() {
			_ = r.found.Emit(event.EvtLocalReachabilityChanged{Reachability: network.ReachabilityPublic})
		}
		r.report()
		if r.expects {
			lone.look(r.punch.found(), r.punch.host.Network().Conns(), time.Now(), r.settings.Conditions)
		}
	}
}
