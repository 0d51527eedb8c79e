package discovery_test

import (
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const loopback = "/ip4/127.0.0.1/tcp/0"

// program is a program's own host.
func program(t *testing.T) host.Host {
	key, _, err := crypto.GenerateEd25519Key(nil)
	require.NoError(t, err)
	h, err := libp2p.New(libp2p.Identity(key), libp2p.NoListenAddrs, libp2p.ProtocolVersion(discovery.Version("test")))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// addresses lead to a peer.
func addresses(t *testing.T, h host.Host) (all []string) {
	for _, a := range h.Addrs() {
		all = append(all, a.String()+"/p2p/"+h.ID().String())
	}
	require.NotEmpty(t, all)
	return all
}

func gpu() records.Offer {
	return records.Offer{
		ID: "gpu", Metadata: records.Metadata{Type: "compute", Name: "A GPU"},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 16000}},
	}
}

// TestTwoPrograms: a program with a host and a DHT of its own, and one with neither, offer to each other and find
// each other. An offer leaves with its program, a watch tells it, and the host of the program goes on.
func TestTwoPrograms(t *testing.T) {
	ctx := t.Context()
	one := program(t)
	table, err := dht.New(one, append(discovery.DHTOptions("test"), dht.Mode(dht.ModeServer))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, table.Close()) }()
	seller, err := discovery.Start(ctx, discovery.Settings{
		Network: "test", Profile: "dev", Dir: t.TempDir(), Host: one, DHT: table, Listen: []string{loopback},
	})
	require.NoError(t, err)
	buyer, err := discovery.Start(ctx, discovery.Settings{
		Network: "test", Profile: "dev", Dir: t.TempDir(), Listen: []string{loopback}, Peers: addresses(t, one),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, buyer.Close()) }()
	require.NoError(t, buyer.Joined(ctx))
	require.NoError(t, seller.Joined(ctx))
	receipt, err := seller.Register(ctx, gpu())
	require.NoError(t, err)
	require.False(t, receipt.Stored.ThisPeerOnly)
	require.Len(t, seller.List(), 1)

	var seen []query.EventKind
	for e, err := range buyer.Watch(ctx, query.Query{Type: "compute"}, "") {
		require.NoError(t, err)
		switch seen = append(seen, e.Kind); e.Kind {
		case query.Added:
			require.Equal(t, one.ID(), e.Record.Name().Provider)
			require.NoError(t, seller.Close())
		case query.Withdrawn, query.Removed:
			require.Contains(t, seen, query.Added)
			answer, err := buyer.Query(ctx, query.Query{Type: "compute"})
			require.NoError(t, err)
			require.Empty(t, answer.Results)
			require.NotEmpty(t, one.Network().ListenAddresses(), "the host of the program goes on")
			return
		}
	}
	t.Fatal("the watch ended")
}

// TestLaterSeed: a program whose seed starts later is not complete alone, and joins when the seed comes.
func TestLaterSeed(t *testing.T) {
	ctx := t.Context()
	seed := program(t)
	require.NoError(t, seed.Network().Listen(multiaddr.StringCast(loopback)))
	at := addresses(t, seed)
	h := program(t)
	p, err := discovery.Start(ctx, discovery.Settings{
		Network: "test", Profile: "dev", Dir: t.TempDir(), Host: h, Listen: []string{loopback}, Peers: at,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	alone, err := p.Query(ctx, query.Query{Type: "compute"})
	require.NoError(t, err)
	require.False(t, alone.Complete, "it is not the first peer, and sees no other")
	table, err := dht.New(seed, append(discovery.DHTOptions("test"), dht.Mode(dht.ModeServer))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, table.Close()) }()
	require.NoError(t, p.Joined(ctx))
}

// TestRefused: settings and hosts that cannot work are refused by name.
func TestRefused(t *testing.T) {
	h, dir := program(t), t.TempDir()
	table, err := dht.New(h, append(discovery.DHTOptions("test"), dht.Mode(dht.ModeServer))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, table.Close()) }()
	for field, wrong := range map[string]discovery.Settings{
		"network":     {Network: "Mars", Profile: "dev", Dir: dir, Host: h},
		"profile":     {Network: "test", Profile: "mars", Dir: dir, Host: h},
		"dir":         {Network: "test", Host: h},
		"dht":         {Network: "another", Profile: "dev", Dir: dir, Host: h, DHT: table},
		"peers":       {Network: "test", Dir: dir, Host: h, Peers: []string{"nowhere"}},
		"listen":      {Network: "test", Profile: "dev", Dir: dir, Listen: []string{"nowhere"}},
		"network_key": {Network: "test", Profile: "dev", Dir: dir, NetworkKey: "secret"},
	} {
		_, err := discovery.Start(t.Context(), wrong)
		require.Equal(t, []any{fault.Invalid, field}, []any{fault.KindOf(err), fault.FieldOf(err)}, "%v", err)
	}
	_, err = discovery.Start(t.Context(), discovery.Settings{Dir: dir, DHT: table})
	require.Equal(t, "dht", fault.FieldOf(err), "%v", err)
	other := program(t)
	require.NoError(t, h.Network().Listen(multiaddr.StringCast(loopback)))
	require.NoError(t, other.Connect(t.Context(), peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()}))
	_, err = discovery.Start(t.Context(), discovery.Settings{Network: "test", Dir: dir, Host: other})
	require.Equal(t, "host", fault.FieldOf(err), "%v", err)
}

// TestRestart: the key and the offers of a peer without a host come back with its folder.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	start := func() *discovery.Plane {
		p, err := discovery.Start(t.Context(), discovery.Settings{
			Profile: "dev", Dir: dir, Listen: []string{loopback}, TTL: time.Hour, Refresh: time.Minute,
		})
		require.NoError(t, err)
		return p
	}
	p := start()
	id := p.Host().ID()
	_, err := p.Register(t.Context(), gpu())
	require.NoError(t, err)
	require.NoError(t, p.Close())
	p = start()
	defer func() { require.NoError(t, p.Close()) }()
	require.Equal(t, id, p.Host().ID())
	r, err := p.Get("gpu")
	require.NoError(t, err)
	require.Equal(t, id, r.Name().Provider)
}
