package discovery_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	engine "github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	reach "github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// benchFixture is a peer whose keepers have n records within 100 km of one place.
func benchFixture(b *testing.B, n int) (*engine.Service, query.Query) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	reg, err := offers.Open(offers.Config{Network: "test", Dir: "r", FS: vfs.NewMem(), Key: key}, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	x := index.New(index.Config{MaxPerProvider: n + 1})
	net := &fakeKeepers{kept: map[records.Name]*records.Record{}, asker: x}
	for i := range n {
		now := time.Now()
		r, err := records.Sign("test", key, offer(fmt.Sprint("s", i), float64(i)), records.Stamp{
			Sequence: 1, Created: now, Issued: now, Expires: now.Add(24 * time.Hour),
		})
		if err != nil {
			b.Fatal(err)
		}
		net.kept[r.Name()] = r
	}
	s, err := engine.NewService(engine.Parts{
		Registry: reg, Index: x, Keepers: net, Updates: &fakeUpdates{},
		Peers: &fakePeers{outcomes: map[peer.ID]reach.Outcome{}, checked: map[peer.ID]bool{}},
		Now:   time.Now, Random: func() uint64 { return 7 },
	}, engine.Settings{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		s.Close()
		reg.Close()
	})
	radius := 100.0
	return s, query.Query{
		Type: "storage", Near: &query.Near{Latitude: 52.5, Longitude: 13.4, RadiusKM: &radius},
		Price: query.Price{MaxPrice: ptr(1e6)}, Capacity: query.Capacity{MinStorageGB: 500}, Limit: 10,
	}
}

// BenchmarkQuery compares a cached answer with a new one, ranked from 1000 records, without network time.
func BenchmarkQuery(b *testing.B) {
	s, q := benchFixture(b, 1000)
	ctx := context.Background()
	b.Run("cached", func(b *testing.B) {
		if _, err := s.Query(ctx, q); err != nil {
			b.Fatal(err)
		}
		took := make([]time.Duration, 0, 1<<20)
		b.ReportAllocs()
		for b.Loop() {
			start := time.Now()
			a, err := s.Query(ctx, q)
			if err != nil || len(a.Results) != 10 {
				b.Fatal(err, a)
			}
			if len(took) < cap(took) {
				took = append(took, time.Since(start))
			}
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
		b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
	})
	b.Run("fresh", func(b *testing.B) {
		b.ReportAllocs()
		for seed := uint64(1); b.Loop(); seed++ {
			fresh := q
			fresh.Sort, fresh.Seed = query.SortRandom, seed // a new question
			if a, err := s.Query(ctx, fresh); err != nil || len(a.Results) != 10 {
				b.Fatal(err, a)
			}
		}
	})
}

// BenchmarkBesideWatches is what a change costs while many watches of other places are open, until the watch of its place shows it.
func BenchmarkBesideWatches(b *testing.B) {
	for _, many := range []int{0, 1000} {
		b.Run(fmt.Sprintf("watches=%d", many), func(b *testing.B) {
			s, q := benchFixture(b, 1)
			q.Limit = 0
			ctx, cancel := context.WithCancel(b.Context())
			var watching sync.WaitGroup
			defer watching.Wait()
			defer cancel()
			for i := range many {
				far := q
				near := *q.Near
				near.Latitude, near.Longitude = float64(i%80), float64(100+i%70)
				far.Near = &near
				w, err := s.Watch(ctx, far, "")
				if err != nil {
					b.Fatal(err)
				}
				watching.Go(func() {
					defer w.Close()
					for {
						if _, err := w.Next(ctx); err != nil {
							return
						}
					}
				})
			}
			w, err := s.Watch(ctx, q, "")
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			shown := func(kind query.EventKind) {
				for {
					ev, err := w.Next(ctx)
					if err != nil {
						b.Fatal(err)
					}
					if ev.Kind == kind {
						return
					}
				}
			}
			shown(query.Progress)
			if _, err := s.Register(ctx, offer("own", 1)); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for price := 2.0; b.Loop(); price++ {
				if _, err := s.Update(ctx, offer("own", price)); err != nil {
					b.Fatal(err)
				}
				shown(query.Updated)
			}
			b.StopTimer()
		})
	}
}
