package p2p

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	manet "github.com/multiformats/go-multiaddr/net"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/p2p/address"
)

// fewest is the least number of connections of a configuration.
const fewest = 24

// dialers builds the resource manager of a profile. It returns a function that opens an incoming connection, and
// the counted refusals.
func dialers(t *testing.T, p Profile, limits Limits) (open func(at string) error, refused map[Refusal]int, log *strings.Builder) {
	t.Helper()
	refused, log = make(map[Refusal]int), new(strings.Builder)
	limits.OnRefusal = func(why Refusal) { refused[why]++ }
	c := testConfig(t)
	c.Profile, c.Limits, c.Logger = p, limits, slog.New(slog.NewTextHandler(log, nil))
	c, settings, err := c.complete()
	require.NoError(t, err)
	manager, err := newResources(&c, settings)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, manager.Close()) })
	return func(at string) error {
		scope, err := manager.OpenConnection(network.DirInbound, false, addr(t, at))
		if err == nil {
			t.Cleanup(scope.Done)
		}
		return err
	}, refused, log
}

// TestManyPeersBehindOneAddress: 64 peers behind one address start at once, each with a TCP and a QUIC dial.
func TestManyPeersBehindOneAddress(t *testing.T) {
	open, refused, log := dialers(t, Public, Limits{})
	for i := range publicPerAddress {
		require.NoError(t, open(fmt.Sprintf("/ip4/80.20.1.1/udp/%d/quic-v1", 10_000+i)))
		require.NoError(t, open(fmt.Sprintf("/ip4/80.20.1.1/tcp/%d", 10_000+i)))
		require.NoError(t, open(fmt.Sprintf("/ip6/2a01:4f8:0:%x::%d/udp/4801/quic-v1", 0x100+i, i+1)))
		// One IPv6 customer has a /56 and takes a new address for each host.
		require.NoError(t, open(fmt.Sprintf("/ip6/2a01:4f8:0:%x::%d/tcp/4801", 0x100+i, i+1)))
	}
	require.Empty(t, refused)
	require.Error(t, open("/ip4/80.20.1.1/tcp/9"))
	require.Error(t, open("/ip6/2a01:4f8:0:1ff::9/tcp/9"))
	require.NoError(t, open("/ip4/80.20.1.2/tcp/9"), "another address")
	require.NoError(t, open("/ip6/2a01:4f8:0:200::9/tcp/9"), "another /56")
	require.Equal(t, map[Refusal]int{RefusedAddress: 2}, refused)
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), "once a minute")
	require.Contains(t, log.String(), "connections.per_address")
	require.Contains(t, log.String(), "80.20.1.1")
}

// TestPerAddressIsASetting covers the setting, and the profiles whose peers share one address.
func TestPerAddressIsASetting(t *testing.T) {
	open, _, _ := dialers(t, Public, Limits{PerAddress: 4})
	for range connectionsPerPeer * 4 {
		require.NoError(t, open("/ip4/80.20.1.1/tcp/9"))
	}
	require.Error(t, open("/ip4/80.20.1.1/tcp/9"))

	open, refused, _ := dialers(t, LAN, Limits{})
	for range 4 * publicPerAddress {
		require.NoError(t, open("/ip4/80.20.1.1/tcp/9"))
	}
	require.Empty(t, refused)
}

// TestHandshakesOfOneAddressAreLimited: connections that end at once cost a handshake each.
func TestHandshakesOfOneAddressAreLimited(t *testing.T) {
	c := testConfig(t)
	c.Profile = Public
	refused := 0
	c.Limits.OnRefusal = func(why Refusal) {
		require.Equal(t, RefusedRate, why)
		refused++
	}
	c, settings, err := c.complete()
	require.NoError(t, err)
	manager, err := newResources(&c, settings)
	require.NoError(t, err)
	defer func() { require.NoError(t, manager.Close()) }()
	for range 3 * burstFactor * publicPerAddress {
		if scope, err := manager.OpenConnection(network.DirInbound, false, addr(t, "/ip4/80.20.1.1/tcp/9")); err == nil {
			scope.Done()
		}
	}
	require.Positive(t, refused)
}

func TestRefusalsAreLoggedOnceAMinute(t *testing.T) {
	var log strings.Builder
	now := time.Unix(1e9, 0)
	r := newRefusals(slog.New(slog.NewTextHandler(&log, nil)), func(Refusal) {})
	r.now = func() time.Time { return now }
	at := func(s string) { r.add(address.IP(addr(t, s)), RefusedAddress) }
	at("/ip4/80.20.1.1/tcp/9")
	at("/ip4/80.20.1.2/tcp/9")
	at("/ip4/80.20.1.3/tcp/9")
	require.Equal(t, 1, strings.Count(log.String(), "WARN"))
	now = now.Add(refusalPause)
	at("/ip4/80.20.1.4/tcp/9")
	require.Equal(t, 2, strings.Count(log.String(), "WARN"))
	require.Contains(t, log.String(), "address=3 last_address=80.20.1.4", "with those between")
}

// told is a log handler that sends each line to a channel.
type told chan string

func (c told) Write(line []byte) (int, error) {
	c <- string(line)
	return len(line), nil
}

// TestRefusedByBootstrapPeer: a bootstrap peer accepts TCP and closes at once, as libp2p does at a limit. The
// condition ends when it has room.
func TestRefusedByBootstrapPeer(t *testing.T) {
	t.Parallel() // waits for its own peers
	early, later := testConfig(t), testConfig(t)
	entry := absent(t, &later)
	at, err := manet.ToNetAddr(entry.Addrs[0])
	require.NoError(t, err)
	full, err := net.Listen("tcp", at.String())
	require.NoError(t, err)
	go func() {
		for {
			conn, err := full.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	lines := make(told, 16)
	early.Bootstrap = []peer.AddrInfo{entry}
	early.Conditions = condition.NewSet(slog.New(slog.NewTextHandler(lines, nil)), time.Now)
	n := start(t, early)
	require.Contains(t, <-lines, "level=WARN")
	active := early.Conditions.Active()
	require.Len(t, active, 1)
	require.Equal(t, condition.AddressLimit, active[0].Name)
	require.Contains(t, active[0].What, entry.Addrs[0].String())
	require.False(t, n.Ready())

	require.NoError(t, full.Close())
	start(t, later)
	require.Contains(t, <-lines, "condition ended")
	require.Empty(t, early.Conditions.Active())
}

// Above the high water mark, a peer still connects to new peers: between mark and hard limit is room for the
// dials of one grace period.
func TestRoomAboveTheHighWaterMark(t *testing.T) {
	c := testConfig(t)
	c.Limits.Connections = fewest
	c, row, err := c.complete()
	require.NoError(t, err)
	resources, err := newResources(&c, row)
	require.NoError(t, err)
	defer resources.Close()
	for _, dir := range []network.Direction{network.DirInbound, network.DirOutbound} {
		for i := range 3 * fewest {
			scope, err := resources.OpenConnection(dir, true, addr(t, fmt.Sprintf("/ip4/203.0.113.%d/tcp/4801", 1+i)))
			require.NoError(t, err, "%s %d", dir, i)
			require.NoError(t, scope.SetPeer(peer.ID(fmt.Sprint(dir, i))))
			defer scope.Done()
		}
	}
}
