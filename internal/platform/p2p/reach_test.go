package p2p

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestServingFollowsReachability takes a public peer from unknown to public and to private reachability.
func TestServingFollowsReachability(t *testing.T) {
	c, other := testConfig(t), testConfig(t)
	c.Profile, c.Bootstrap = Public, []peer.AddrInfo{absent(t, &other)}
	n := start(t, c)
	require.False(t, n.Routing().Serving())
	found, err := n.host.EventBus().Emitter(new(event.EvtLocalReachabilityChanged), eventbus.Stateful)
	require.NoError(t, err)
	defer found.Close()
	for _, reach := range []network.Reachability{network.ReachabilityPublic, network.ReachabilityPrivate} {
		changed := n.Routing().Changed()
		require.NoError(t, found.Emit(event.EvtLocalReachabilityChanged{Reachability: reach}))
		<-changed
		require.Equal(t, reach == network.ReachabilityPublic, n.Routing().Serving())
	}
}

// TestReachStates takes a peer of the profile public through the events of its life.
func TestReachStates(t *testing.T) {
	begin := time.Unix(0, 0)
	relay := testID(t)
	circuit := addr(t, "/ip4/51.15.1.1/udp/4801/quic-v1/p2p/"+relay.String()+"/p2p-circuit")
	own := addr(t, "/ip4/62.10.1.1/udp/4801/quic-v1")
	other := addr(t, "/ip6/2a01:4f8::1/udp/4801/quic-v1")
	report := func(r network.Reachability) any { return event.EvtLocalReachabilityChanged{Reachability: r} }
	relayed := event.EvtAutoRelayAddrsUpdated{RelayAddrs: []multiaddr.Multiaddr{circuit, circuit}}
	type step struct {
		at    time.Duration
		event any // nil: time passes
		state ReachState
		text  string
	}
	for name, story := range map[string]struct {
		config Config
		steps  []step
	}{
		"behind NAT": {Config{}, []step{
			{0, report(network.ReachabilityUnknown), ReachChecking, "no relay is found yet"},
			{3 * time.Second, relayed, ReachRelayed, "relayed by …" + relay.String()[len(relay.String())-8:] + "; no hole punch tried yet"},
			{17 * time.Second, report(network.ReachabilityPrivate), ReachRelayed, "behind NAT"},
			{time.Hour, event.EvtAutoRelayAddrsUpdated{}, ReachChecking, ""},
			{time.Hour + reachSettle, nil, ReachUnreachable, "behind NAT or a firewall, and no relay was found"},
			{2 * time.Hour, relayed, ReachRelayed, ""},
		}},
		"public": {Config{}, []step{
			{time.Second, relayed, ReachRelayed, ""},
			{2 * time.Second, report(network.ReachabilityPublic), ReachPublic, "connect directly"},
			{time.Hour, report(network.ReachabilityPrivate), ReachRelayed, ""},
			{time.Hour, event.EvtHostReachableAddrsChanged{Reachable: []multiaddr.Multiaddr{own}}, ReachPublic, ""},
		}},
		"nobody to ask": {Config{}, []step{
			{reachSettle, nil, ReachUnreachable, "no other peer could test this peer"},
		}},
		"wrongly announced": {Config{Reach: ReachConfig{Announce: []multiaddr.Multiaddr{own}}}, []step{
			{0, report(network.ReachabilityPublic), ReachPublic, ""},
			{time.Second, report(network.ReachabilityPrivate), ReachChecking, ""},
			{time.Second + reachSettle, nil, ReachUnreachable, "announced addresses"},
			{time.Hour, relayed, ReachRelayed, "cannot connect to the announced addresses"},
		}},
		"wrongly set to public": {Config{Reach: ReachConfig{Mode: ReachablePublic}}, []step{
			{0, report(network.ReachabilityPublic), ReachPublic, ""},
			{time.Second, event.EvtHostReachableAddrsChanged{
				Unreachable: []multiaddr.Multiaddr{own}, Unknown: []multiaddr.Multiaddr{other},
			}, ReachPublic, ""},
			{time.Second, event.EvtHostReachableAddrsChanged{Unreachable: []multiaddr.Multiaddr{own, other}}, ReachChecking, ""},
			{time.Hour, nil, ReachUnreachable, own.String()},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			story.config.Reach, err = story.config.Reach.complete(true)
			require.NoError(t, err)
			r := newReach(&story.config, true, begin)
			for _, s := range story.steps {
				if s.event == nil {
					r.tick(begin.Add(s.at))
				} else {
					r.event(s.event, begin.Add(s.at))
				}
				v := r.view()
				require.Equal(t, s.state, v.State, v.Text)
				require.Contains(t, v.Text, s.text)
				require.Equal(t, s.state == ReachRelayed, len(v.Relays) > 0)
			}
		})
	}
}

// TestUnreachableIsACondition raises the condition after the settling time, and clears it with the first relay.
func TestUnreachableIsACondition(t *testing.T) {
	begin := time.Unix(0, 0)
	set := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	r := newReach(&Config{}, true, begin)
	r.tick(begin.Add(reachSettle - 1))
	r.report(set)
	require.Empty(t, set.Active())
	r.tick(begin.Add(reachSettle))
	r.report(set)
	require.Equal(t, []string{string(condition.NotReachable)}, set.ActiveNames())
	require.Contains(t, set.Active()[0].Message, "announce the outer address", "the message names a remedy")
	r.event(event.EvtAutoRelayAddrsUpdated{RelayAddrs: multiaddrs(t, "/ip4/51.15.1.1/tcp/4801/p2p/"+testID(t).String()+"/p2p-circuit")}, begin)
	r.report(set)
	require.Empty(t, set.Active())
}

// TestWrongAnnouncementIsACondition also while a relay keeps the peer usable.
func TestWrongAnnouncementIsACondition(t *testing.T) {
	set := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	r := newReach(&Config{Reach: ReachConfig{Announce: multiaddrs(t, "/ip4/62.10.1.1/tcp/4801")}}, true, time.Unix(0, 0))
	r.event(event.EvtLocalReachabilityChanged{Reachability: network.ReachabilityPublic}, time.Unix(1, 0))
	r.report(set)
	require.Empty(t, set.Active())
	r.event(event.EvtLocalReachabilityChanged{Reachability: network.ReachabilityPrivate}, time.Unix(2, 0))
	r.event(event.EvtAutoRelayAddrsUpdated{RelayAddrs: multiaddrs(t, "/ip4/51.15.1.1/tcp/4801/p2p/"+testID(t).String()+"/p2p-circuit")}, time.Unix(3, 0))
	r.report(set)
	require.Contains(t, set.Active()[0].Message, "announced addresses")
}

// TestReachOfLocalProfiles: a private network needs no test.
func TestReachOfLocalProfiles(t *testing.T) {
	r := newReach(&Config{Profile: LAN}, false, time.Unix(0, 0))
	r.tick(time.Unix(1e6, 0))
	require.Equal(t, ReachLocal, r.view().State)
}

func TestReachNamesTheRefusalOfARelay(t *testing.T) {
	r := newReach(&Config{}, true, time.Unix(0, 0))
	r.reserved(errors.New("RESERVATION_REFUSED"))
	r.tick(time.Unix(3600, 0))
	require.Contains(t, r.view().Text, "the last relay refused (RESERVATION_REFUSED)")
	r.reserved(nil)
	require.NotContains(t, r.view().Text, "refused")
}

func TestReachCountsHolePunches(t *testing.T) {
	r := newReach(&Config{}, true, time.Unix(0, 0))
	r.event(event.EvtAutoRelayAddrsUpdated{RelayAddrs: []multiaddr.Multiaddr{
		addr(t, "/ip4/51.15.1.1/tcp/4801/p2p/"+testID(t).String()+"/p2p-circuit"),
	}}, time.Unix(1, 0))
	r.HolePunchFinished("initiator", 3, nil, nil, nil)
	require.Contains(t, r.view().Text, "hole punching failed (0 of 1)")
	r.event(event.EvtNATDeviceTypeChanged{
		TransportProtocol: network.NATTransportUDP, NatDeviceType: network.NATDeviceTypeEndpointDependent,
	}, time.Unix(2, 0))
	require.Contains(t, r.view().Text, "another port for each peer")
	r.punch(true)
	v := r.view()
	require.Contains(t, v.Text, "hole punching works (1 of 2)")
	require.Equal(t, 1, v.Punched)
	require.Equal(t, 1, v.Unpunched)
}

// TestReachConfigErrorsNameTheField also refuses addresses that no stranger can dial.
func TestReachConfigErrorsNameTheField(t *testing.T) {
	good := "/ip4/62.10.1.1/udp/4801/quic-v1"
	for name, c := range map[string]struct {
		config ReachConfig
		field  string
	}{
		"reachability":       {ReachConfig{Mode: "maybe"}, "reach"},
		"private, announced": {ReachConfig{Mode: ReachablePrivate, Announce: multiaddrs(t, good)}, "announce"},
		"too many":           {ReachConfig{Announce: multiaddrs(t, slices.Repeat([]string{good}, maxAnnounce+1)...)}, "announce"},
		"private address":    {ReachConfig{Announce: multiaddrs(t, good, "/ip4/192.168.1.1/tcp/4801")}, "announce[1]"},
		"listen address":     {ReachConfig{Announce: multiaddrs(t, "/ip4/0.0.0.0/tcp/4801")}, "announce[0]"},
		"port 0":             {ReachConfig{Announce: multiaddrs(t, "/ip4/62.10.1.1/tcp/0")}, "announce[0]"},
		"no port":            {ReachConfig{Announce: multiaddrs(t, "/ip4/62.10.1.1")}, "announce[0]"},
		"other transport":    {ReachConfig{Announce: multiaddrs(t, "/ip4/62.10.1.1/tcp/4801/ws")}, "announce[0]"},
		"with a peer id":     {ReachConfig{Announce: multiaddrs(t, good+"/p2p/"+testID(t).String())}, "announce[0]"},
	} {
		_, err := c.config.complete(true)
		require.Equal(t, fault.Invalid, fault.KindOf(err), name)
		require.Equal(t, c.field, fault.FieldOf(err), name)
	}
	_, err := ReachConfig{Announce: multiaddrs(t, good, "/dns/a.example.com/tcp/4801", "/ip6/2a01:4f8::1/udp/1/quic-v1")}.complete(true)
	require.NoError(t, err)
	_, err = ReachConfig{Announce: multiaddrs(t, "/ip4/192.168.1.1/tcp/4801")}.complete(false)
	require.NoError(t, err, "a private network announces private addresses")
}

// TestAnnouncedPeerServes: an announced address decides at once, before any other peer has tested it.
func TestAnnouncedPeerServes(t *testing.T) {
	c, other := testConfig(t), testConfig(t)
	c.Profile, c.Bootstrap = Public, []peer.AddrInfo{absent(t, &other)}
	c.Reach.Announce = multiaddrs(t, "/ip4/62.10.1.1/udp/4801/quic-v1")
	n := start(t, c)
	for changed := n.Routing().Changed(); !n.Routing().Serving(); changed = n.Routing().Changed() {
		<-changed
	}
	require.Contains(t, n.host.Addrs(), c.Reach.Announce[0])
	require.Eventually(t, func() bool { return n.Reach().State == ReachPublic }, patience, time.Millisecond) // after the routing
}

func testID(t testing.TB) peer.ID {
	id, err := peer.IDFromPrivateKey(testKey(t))
	require.NoError(t, err)
	return id
}

func multiaddrs(t testing.TB, list ...string) []multiaddr.Multiaddr {
	out, err := ParseAddrs("test", list)
	require.NoError(t, err)
	return out
}
