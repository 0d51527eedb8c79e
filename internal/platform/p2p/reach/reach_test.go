package reach

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestReachStates takes a peer of the profile public through the events of its life.
func TestReachStates(t *testing.T) {
	begin := time.Unix(0, 0)
	relay := testID(t)
	circuit := multiaddr.StringCast("/ip4/51.15.1.1/udp/4801/quic-v1/p2p/" + relay.String() + "/p2p-circuit")
	own := multiaddr.StringCast("/ip4/62.10.1.1/udp/4801/quic-v1")
	other := multiaddr.StringCast("/ip6/2a01:4f8::1/udp/4801/quic-v1")
	report := func(r network.Reachability) any { return event.EvtLocalReachabilityChanged{Reachability: r} }
	relayed := event.EvtAutoRelayAddrsUpdated{RelayAddrs: []multiaddr.Multiaddr{circuit, circuit}}
	type step struct {
		at    time.Duration
		event any // nil: time passes
		state State
		text  string
	}
	for name, story := range map[string]struct {
		config Config
		steps  []step
	}{
		"behind NAT": {Config{}, []step{
			{0, report(network.ReachabilityUnknown), StateChecking, "no relay is found yet"},
			{3 * time.Second, relayed, StateRelayed, "relayed by …" + relay.String()[len(relay.String())-8:] + "; no hole punch tried yet"},
			{17 * time.Second, report(network.ReachabilityPrivate), StateRelayed, "behind NAT"},
			{time.Hour, event.EvtAutoRelayAddrsUpdated{}, StateChecking, ""},
			{time.Hour + reachSettle, nil, StateUnreachable, "behind NAT or a firewall, and no relay was found"},
			{2 * time.Hour, relayed, StateRelayed, ""},
		}},
		"public": {Config{}, []step{
			{time.Second, relayed, StateRelayed, ""},
			{2 * time.Second, report(network.ReachabilityPublic), StatePublic, "connect directly"},
			{time.Hour, report(network.ReachabilityPrivate), StateRelayed, ""},
			{time.Hour, event.EvtHostReachableAddrsChanged{Reachable: []multiaddr.Multiaddr{own}}, StatePublic, ""},
		}},
		"nobody to ask": {Config{}, []step{
			{reachSettle, nil, StateUnreachable, "no other peer could test this peer"},
		}},
		"wrongly announced": {Config{Announce: []multiaddr.Multiaddr{own}}, []step{
			{0, report(network.ReachabilityPublic), StatePublic, ""},
			{time.Second, report(network.ReachabilityPrivate), StateChecking, ""},
			{time.Second + reachSettle, nil, StateUnreachable, "announced addresses"},
			{time.Hour, relayed, StateRelayed, "cannot connect to the announced addresses"},
		}},
		"wrongly set to public": {Config{Mode: Public}, []step{
			{0, report(network.ReachabilityPublic), StatePublic, ""},
			{time.Second, event.EvtHostReachableAddrsChanged{
				Unreachable: []multiaddr.Multiaddr{own}, Unknown: []multiaddr.Multiaddr{other},
			}, StatePublic, ""},
			{time.Second, event.EvtHostReachableAddrsChanged{Unreachable: []multiaddr.Multiaddr{own, other}}, StateChecking, ""},
			{time.Hour, nil, StateUnreachable, own.String()},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			story.config, err = story.config.Complete(true)
			require.NoError(t, err)
			r := New(story.config, Settings{Open: true}, begin)
			for _, s := range story.steps {
				if s.event == nil {
					r.event(nil, begin.Add(s.at))
				} else {
					r.event(s.event, begin.Add(s.at))
				}
				v := r.Status()
				require.Equal(t, s.state, v.State, v.Text)
				require.Contains(t, v.Text, s.text)
				require.Equal(t, s.state == StateRelayed, len(v.Relays) > 0)
			}
		})
	}
}

// TestUnreachableIsACondition raises the condition after the settling time, and clears it with the first relay.
func TestUnreachableIsACondition(t *testing.T) {
	begin := time.Unix(0, 0)
	set := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	r := New(Config{}, Settings{Open: true, Conditions: set}, begin)
	r.event(nil, begin.Add(reachSettle-1))
	r.report()
	require.Empty(t, set.Active())
	r.event(nil, begin.Add(reachSettle))
	r.report()
	require.Equal(t, []string{string(condition.NotReachable)}, set.ActiveNames())
	require.Contains(t, set.Active()[0].String(), "announce the outer address", "the message names a remedy")
	r.event(event.EvtAutoRelayAddrsUpdated{RelayAddrs: multiaddrs(t, "/ip4/51.15.1.1/tcp/4801/p2p/"+testID(t).String()+"/p2p-circuit")}, begin)
	r.report()
	require.Empty(t, set.Active())
}

// TestWrongAnnouncementIsACondition also while a relay keeps the peer usable.
func TestWrongAnnouncementIsACondition(t *testing.T) {
	set := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	r := New(Config{Announce: multiaddrs(t, "/ip4/62.10.1.1/tcp/4801")}, Settings{Open: true, Conditions: set}, time.Unix(0, 0))
	r.event(event.EvtLocalReachabilityChanged{Reachability: network.ReachabilityPublic}, time.Unix(1, 0))
	r.report()
	require.Empty(t, set.Active())
	r.event(event.EvtLocalReachabilityChanged{Reachability: network.ReachabilityPrivate}, time.Unix(2, 0))
	r.event(event.EvtAutoRelayAddrsUpdated{RelayAddrs: multiaddrs(t, "/ip4/51.15.1.1/tcp/4801/p2p/"+testID(t).String()+"/p2p-circuit")}, time.Unix(3, 0))
	r.report()
	require.Contains(t, set.Active()[0].String(), "announced addresses")
}

// TestReachOfLocalProfiles: a private network needs no test.
func TestReachOfLocalProfiles(t *testing.T) {
	r := New(Config{}, Settings{Profile: "lan"}, time.Unix(0, 0))
	r.event(nil, time.Unix(1e6, 0))
	require.Equal(t, StateLocal, r.Status().State)
}

func TestReachNamesTheRefusalOfARelay(t *testing.T) {
	r := New(Config{}, Settings{Open: true}, time.Unix(0, 0))
	r.reserved(errors.New("RESERVATION_REFUSED"))
	r.event(nil, time.Unix(3600, 0))
	require.Contains(t, r.Status().Text, "the last relay refused (RESERVATION_REFUSED)")
	r.reserved(nil)
	require.NotContains(t, r.Status().Text, "refused")
}

// hole is a direct connection.
type hole struct{ network.ConnMultiaddrs }

func TestReachCountsHolePunches(t *testing.T) {
	r := New(Config{}, Settings{Open: true}, time.Unix(0, 0))
	r.event(event.EvtAutoRelayAddrsUpdated{RelayAddrs: []multiaddr.Multiaddr{
		multiaddr.StringCast("/ip4/51.15.1.1/tcp/4801/p2p/" + testID(t).String() + "/p2p-circuit"),
	}}, time.Unix(1, 0))
	r.HolePunchFinished("initiator", 3, nil, nil, nil)
	require.Contains(t, r.Status().Text, "hole punching failed (0 of 1)")
	r.event(event.EvtNATDeviceTypeChanged{
		TransportProtocol: network.NATTransportUDP, NatDeviceType: network.NATDeviceTypeEndpointDependent,
	}, time.Unix(2, 0))
	require.Contains(t, r.Status().Text, "another port for each peer")
	r.HolePunchFinished("initiator", 1, nil, nil, hole{})
	v := r.Status()
	require.Contains(t, v.Text, "hole punching works (1 of 2)")
	require.Equal(t, 1, v.Punched)
	require.Equal(t, 1, v.Unpunched)
}

// TestReachConfigErrorsNameTheField also refuses addresses that no stranger can dial.
func TestReachConfigErrorsNameTheField(t *testing.T) {
	good := "/ip4/62.10.1.1/udp/4801/quic-v1"
	for name, c := range map[string]struct {
		config Config
		field  string
	}{
		"reachability":       {Config{Mode: "maybe"}, "reach"},
		"private, announced": {Config{Mode: Private, Announce: multiaddrs(t, good)}, "announce"},
		"too many":           {Config{Announce: multiaddrs(t, slices.Repeat([]string{good}, maxAnnounce+1)...)}, "announce"},
		"private address":    {Config{Announce: multiaddrs(t, good, "/ip4/192.168.1.1/tcp/4801")}, "announce[1]"},
		"listen address":     {Config{Announce: multiaddrs(t, "/ip4/0.0.0.0/tcp/4801")}, "announce[0]"},
		"port 0":             {Config{Announce: multiaddrs(t, "/ip4/62.10.1.1/tcp/0")}, "announce[0]"},
		"no port":            {Config{Announce: multiaddrs(t, "/ip4/62.10.1.1")}, "announce[0]"},
		"other transport":    {Config{Announce: multiaddrs(t, "/ip4/62.10.1.1/tcp/4801/ws")}, "announce[0]"},
		"with a peer id":     {Config{Announce: multiaddrs(t, good+"/p2p/"+testID(t).String())}, "announce[0]"},
	} {
		_, err := c.config.Complete(true)
		require.Equal(t, fault.Invalid, fault.KindOf(err), name)
		require.Equal(t, c.field, fault.FieldOf(err), name)
	}
	_, err := Config{Announce: multiaddrs(t, good, "/dns/a.example.com/tcp/4801", "/ip6/2a01:4f8::1/udp/1/quic-v1")}.Complete(true)
	require.NoError(t, err)
	_, err = Config{Announce: multiaddrs(t, "/ip4/192.168.1.1/tcp/4801")}.Complete(false)
	require.NoError(t, err, "a private network announces private addresses")
}

func testID(t testing.TB) peer.ID {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	return id
}

func multiaddrs(t testing.TB, list ...string) []multiaddr.Multiaddr {
	out, err := address.Parse("test", list)
	require.NoError(t, err)
	return out
}
