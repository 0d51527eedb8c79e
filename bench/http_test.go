//go:build unix

package bench

import (
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	ds "github.com/ipfs/go-datastore"
	dssync "github.com/ipfs/go-datastore/sync"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/multiformats/go-multiaddr"
	"github.com/stretchr/testify/require"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keeper"
	"github.com/blackhole/blackhole/internal/discovery/registry"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/internal/frontend/httpapi"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/records"
)

// clients ask at once, each on a connection of its own.
const clients = 16

// size is how many records the peer keeps: BLACKHOLE_BENCH_RECORDS, or 100,000.
func size(b *testing.B) int {
	if text := os.Getenv("BLACKHOLE_BENCH_RECORDS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(b, err)
		return n
	}
	return 100_000
}

// BenchmarkHTTP asks one peer, alone in its network, over HTTP and JSON for the three
// standard queries, each question once, and for one question again and again.
//
//	BLACKHOLE_BENCH_RECORDS=1000000 go test ./bench -run '^$' -bench HTTP -benchtime 5s -timeout 30m
func BenchmarkHTTP(b *testing.B) {
	addr := serve(b, size(b))
	for _, n := range []int{1, clients} {
		for name, body := range map[string]func(*mrand.Rand) string{
			"near100":  func(r *mrand.Rand) string { return question(r, 100, "distance") },
			"price300": func(r *mrand.Rand) string { return question(r, 300, "price") },
			"nearest":  func(r *mrand.Rand) string { return question(r, 0, "distance") },
			"cached":   func(*mrand.Rand) string { return question(mrand.New(mrand.NewPCG(1, 1)), 100, "distance") },
		} {
			b.Run(fmt.Sprintf("%s/clients=%d", name, n), func(b *testing.B) { ask(b, addr, n, body) })
		}
	}
}

// question is a standard query around a random place.
func question(r *mrand.Rand, radius float64, sort string) string {
	lat, lon := place(r)
	within := ""
	if radius > 0 {
		within = fmt.Sprintf(`,"radius_km":%g`, radius)
	}
	return fmt.Sprintf(`{"type":"compute","near":{"latitude":%.6f,"longitude":%.6f%s},"min_cpu_cores":8,"max_price":0.5,`+
		`"price_unit":"per-hour","currency":"USDC","min_uptime":99,"sort":%q,"limit":10}`, lat, lon, within, sort)
}

// ask spreads b.N questions over n clients and reports rate and latencies.
func ask(b *testing.B, addr string, n int, body func(*mrand.Rand) string) {
	each := (b.N + n - 1) / n
	requests, took, askers := make([][][]byte, n), make([][]time.Duration, n), make([]*asker, n)
	for i := range n {
		var err error
		askers[i], err = dial(addr)
		require.NoError(b, err)
		defer askers[i].close()
		r := mrand.New(mrand.NewPCG(uint64(i), uint64(b.N)))
		for range each {
			requests[i] = append(requests[i], post(addr, "/v1/discovery/query", body(r)))
		}
		took[i] = make([]time.Duration, 0, each)
	}
	runtime.GC()
	var wg sync.WaitGroup
	worked := working()
	b.ResetTimer()
	for i := range n {
		wg.Go(func() {
			for _, request := range requests[i] {
				start := time.Now()
				if err := askers[i].ask(request); err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	worked = working() - worked
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "queries/s")
	b.ReportMetric(float64(worked.Nanoseconds())/1e3/float64(len(all)), "cpu-us/query") // the clients' included
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
}

// working is how long processors have worked for the process: unlike the clock it tells
// little of what else the machine does.
func working() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serve starts a peer that keeps n records and gives its address.
func serve(b *testing.B, n int) string {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(b, err)
	verifier, err := records.NewVerifier("dev", 1024)
	require.NoError(b, err)
	x := index.New(index.Config{MaxPerProvider: n})
	fill(b, x, n)
	live := gossip.Config{Network: "dev", Verifier: verifier, Now: time.Now, Known: x.Latest, Sink: func(*records.Record) {}, Loopback: true}
	addr, err := multiaddr.NewMultiaddr("/ip4/127.0.0.1/tcp/0")
	require.NoError(b, err)
	node, err := p2p.New(b.Context(), p2p.Config{
		Identity: key, Datastore: dssync.MutexWrap(ds.NewMapDatastore()),
		Listen: []multiaddr.Multiaddr{addr}, PubSub: gossip.Options(live),
	})
	require.NoError(b, err)
	g, err := gossip.New(live, node.PubSub())
	require.NoError(b, err)
	k, err := keeper.New(wire.Config{Network: "dev", Host: node.Host(), Router: node.Routing(), Index: x, Verifier: verifier})
	require.NoError(b, err)
	reg, err := registry.Open(registry.Config{Network: "dev", Dir: "r", FS: vfs.NewMem(), Key: key}, time.Now())
	require.NoError(b, err)
	d, err := engine.NewService(engine.Parts{
		Registry: reg, Index: x, Keepers: k, Updates: g, Prober: node.Prober(), Now: time.Now, Random: mrand.Uint64,
	}, engine.Settings{})
	require.NoError(b, err)
	s := httpapi.New(httpapi.Config{Registrar: d, Finder: d, Metrics: http.NotFoundHandler()})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	b.Cleanup(func() {
		s.Close()
		require.NoError(b, <-done)
		require.NoError(b, d.Close())
		require.NoError(b, reg.Close())
		require.NoError(b, k.Close())
		g.Close()
		require.NoError(b, node.Close())
	})
	return l.Addr().String()
}

// fill signs n records, four types alike, placed like city populations.
func fill(b *testing.B, x *index.Index, n int) {
	var wg sync.WaitGroup
	for w := range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			r := mrand.New(mrand.NewPCG(7, uint64(w)))
			key, _, err := crypto.GenerateEd25519Key(rand.Reader)
			if err != nil {
				b.Error(err)
				return
			}
			for i := w; i < n; i += runtime.GOMAXPROCS(0) {
				now := time.Now()
				rec, err := records.Sign("dev", key, offer(r, fmt.Sprint("service-", i), i), records.Stamp{
					Sequence: 1, Created: now, Issued: now, Expires: now.Add(24 * time.Hour),
				})
				if err == nil {
					_, err = x.Put(rec, now)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func offer(r *mrand.Rand, id string, i int) records.Offer {
	lat, lon := place(r)
	price, uptime := r.Float64(), 98+2*r.Float64()
	o := records.Offer{
		ID: id, Metadata: records.Metadata{Name: "service " + id, Version: "1.0.0", Endpoints: []string{"https://" + id + ".example.com/v1"}},
		Location: &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE"},
		Pricing:  &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"},
		Health:   &records.Health{Status: "HEALTHY", UptimePercent: &uptime},
	}
	switch i % 4 {
	case 0:
		o.Metadata.Type = "compute"
		o.Capabilities = &records.Capabilities{Compute: &records.Compute{CPUCores: 1 << r.IntN(7), MemoryMB: 16000}}
	case 1:
		o.Metadata.Type = "storage"
		o.Capabilities = &records.Capabilities{Storage: &records.Storage{TotalSpace: 2e12, AvailableSpace: 1e12}}
	case 2:
		o.Metadata.Type = "cdn"
		o.Capabilities = &records.Capabilities{CDN: &records.CDN{BandwidthMbps: 1000}}
	default:
		o.Metadata.Type = "bandwidth"
		o.Capabilities = &records.Capabilities{Bandwidth: &records.Bandwidth{UploadMbps: 100, DownloadMbps: 100}}
	}
	return o
}

// place is near one of 1000 cities whose populations fall off as Zipf's law says.
func place(r *mrand.Rand) (lat, lon float64) {
	city := mrand.New(mrand.NewPCG(uint64(mrand.NewZipf(r, 1.07, 3, 999).Uint64()), 42))
	lat, lon = city.Float64()*120-55, city.Float64()*360-180
	return lat + 0.4*r.Float64() - 0.2, min(max(lon+0.4*r.Float64()-0.2, -180), 179.999)
}
