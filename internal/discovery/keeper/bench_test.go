package keeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/query"
)

// loopback returns two keepers on real sockets.
func loopback(b *testing.B, address string) [2]*Keeper {
	b.Helper()
	var ks [2]*Keeper
	d := &directory{}
	var hosts []host.Host
	for i := range ks {
		h, err := libp2p.New(libp2p.ListenAddrStrings(address), libp2p.DisableRelay(), libp2p.DisableMetrics())
		require.NoError(b, err)
		d.peers, hosts = append(d.peers, h.ID()), append(hosts, h)
		ks[i], err = New(protocol.Config{Host: h, Network: "test", Router: router{d, h.ID()}, Index: index.New(index.Config{MaxPerProvider: 10_000}), Verifier: keepertest.NewVerifier(b), Limits: protocol.Limits{Sync: -1, Loopback: true}})
		require.NoError(b, err)
		b.Cleanup(func() {
			require.NoError(b, ks[i].Close())
			require.NoError(b, h.Close())
		})
	}
	hosts[0].Peerstore().AddAddrs(ks[1].Self, hosts[1].Addrs(), peerstore.PermanentAddrTTL)
	require.NoError(b, hosts[0].Connect(b.Context(), peer.AddrInfo{ID: ks[1].Self}))
	return ks
}

func BenchmarkQuery(b *testing.B) {
	for _, address := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		for _, limit := range []int{10, 100} {
			b.Run(fmt.Sprintf("%s/%d", address[14:18], limit), func(b *testing.B) {
				ks := loopback(b, address)
				ks[0].Store(b.Context(), keepertest.Batch(b, keepertest.NewProvider(b), 1000, time.Now()))
				plan := keepertest.Compile(b, query.Query{Sort: query.SortPrice, Limit: limit})
				for b.Loop() {
					found, err := ks[0].Query(b.Context(), plan)
					if err != nil || !found.Complete {
						b.Fatal(err, found.Reason)
					}
				}
			})
		}
	}
}

func BenchmarkStore(b *testing.B) {
	ks := loopback(b, "/ip4/127.0.0.1/tcp/0")
	p := keepertest.NewProvider(b)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		now := time.Now()
		recs := keepertest.Batch(b, p, 100, now)
		for j := range recs {
			recs[j] = p.Sign(b, keepertest.Offer(fmt.Sprintf("s%03d", j)), uint64(i+1), now)
		}
		b.StartTimer()
		for _, o := range ks[0].Store(b.Context(), recs) {
			if o.Err != nil || o.Stored.On != 2 {
				b.Fatal(o)
			}
		}
	}
}
