package embed_test

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

	"github.com/blackhole/blackhole/pkg/embed"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// program is a program's own host and DHT.
func program(t *testing.T) (host.Host, *dht.IpfsDHT) {
	key, _, err := crypto.GenerateEd25519Key(nil)
	require.NoError(t, err)
	h, err := libp2p.New(libp2p.Identity(key), libp2p.NoListenAddrs, libp2p.ProtocolVersion(embed.Version("test")))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	d, err := dht.New(h, append(embed.DHTOptions("test"), dht.Mode(dht.ModeServer))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return h, d
}

func listen(t *testing.T, h host.Host) peer.AddrInfo {
	require.NoError(t, h.Network().Listen(multiaddr.StringCast("/ip4/127.0.0.1/tcp/0")))
	return peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()}
}

// TestTwoPrograms: two programs with hosts of their own offer to each other and find each other, and an offer leaves with its program.
func TestTwoPrograms(t *testing.T) {
	ctx := t.Context()
	one, oneDHT := program(t)
	seller, err := embed.New(ctx, one, oneDHT, embed.Settings{Network: "test", Profile: "dev", Dir: t.TempDir(), First: true})
	require.NoError(t, err)
	two, twoDHT := program(t)
	buyer, err := embed.New(ctx, two, twoDHT, embed.Settings{Network: "test", Profile: "dev", Dir: t.TempDir()})
	require.NoError(t, err)
	defer func() { require.NoError(t, buyer.Close()) }()
	alone, err := buyer.Query(ctx, query.Query{Type: "compute"})
	require.NoError(t, err)
	require.False(t, alone.Complete, "it is not the first peer, and sees no other")

	listen(t, two)
	require.NoError(t, two.Connect(ctx, listen(t, one)))
	offer := records.Offer{
		ID: "gpu", Metadata: records.Metadata{Type: "compute", Name: "A GPU"},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 16000}},
	}
	require.NoError(t, seller.Joined(ctx))
	require.NoError(t, buyer.Joined(ctx))
	receipt, err := seller.Register(ctx, offer)
	require.NoError(t, err)
	require.False(t, receipt.Stored.ThisPeerOnly)
	found := func() []query.Result {
		a, err := buyer.Query(ctx, query.Query{Type: "compute"})
		require.NoError(t, err)
		return a.Results
	}
	require.Len(t, found(), 1)
	require.Equal(t, one.ID(), found()[0].Record.Name().Provider)
	require.NoError(t, seller.Close())
	until(t, "the offer left", func() bool { return len(found()) == 0 })
	require.NotEmpty(t, one.Network().Conns(), "the host goes on")
}

// TestRefused: settings and hosts that cannot work are refused by name.
func TestRefused(t *testing.T) {
	h, d := program(t)
	dir := t.TempDir()
	for field, wrong := range map[string]embed.Settings{
		"network": {Profile: "dev", Dir: dir}, "profile": {Network: "test", Profile: "mars", Dir: dir}, "dir": {Network: "test"},
		"dht": {Network: "another", Profile: "dev", Dir: dir},
	} {
		_, err := embed.New(t.Context(), h, d, wrong)
		require.Equal(t, []any{fault.Invalid, field}, []any{fault.KindOf(err), fault.FieldOf(err)}, "%v", err)
	}
	other, _ := program(t)
	listen(t, h)
	require.NoError(t, other.Connect(t.Context(), peer.AddrInfo{ID: h.ID(), Addrs: h.Addrs()}))
	_, err := embed.New(t.Context(), other, d, embed.Settings{Network: "test", Dir: dir})
	require.Equal(t, "host", fault.FieldOf(err), "%v", err)
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, time.Minute, 20*time.Millisecond, what)
}
