package index_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// TestSearchesSeeWholeUpdates searches while writers update every service repeatedly. Every
// answer must contain each service once, in a version that never goes back.
func TestSearchesSeeWholeUpdates(t *testing.T) {
	const services, versions = 40, 100
	x, key := index.NewInline(index.Config{}, 16), keyOf(t, 1) // keeps merges running most of the time
	var fresher []*records.Record
	for version := range uint64(versions) {
		for i := range services {
			o := cdn(fmt.Sprint("s", i))
			o.Location = &records.Location{Latitude: ptr(float64(version % 80)), Longitude: ptr(float64(i))}
			fresher = append(fresher, sign(t, key, o, stamp(version+1, 0, time.Hour)))
		}
	}
	put := func(r *records.Record) {
		_, err := x.Put(r, epoch())
		require.NoError(t, err)
	}
	for _, r := range fresher[:services] {
		put(r)
	}
	plans := []*queries.Plan{
		plan(t, query.Query{Type: "cdn"}),
		plan(t, query.Query{Type: "cdn", Near: &query.Near{Latitude: 3, Longitude: 3}}),
		plan(t, query.Query{Type: "cdn", Near: &query.Near{Latitude: 15, Longitude: 20, RadiusKM: ptr(5000.0)}, Sort: query.SortRandom, Seed: 1}),
	}
	var done atomic.Bool
	var readers sync.WaitGroup
	for i, p := range plans {
		readers.Go(func() {
			for last := make(map[string]uint64); !done.Load(); {
				if problem := readOnce(x, p, last); problem != "" {
					t.Errorf("plan %d: %s", i, problem)
					return
				}
				if i < 2 && len(last) != services {
					t.Errorf("plan %d: services are missing", i)
					return
				}
			}
		})
	}
	for _, r := range fresher[services:] {
		put(r)
	}
	done.Store(true)
	readers.Wait()
	require.Len(t, slices.Collect(x.All()), services)
}

// readOnce searches, stores the version of each service in last, and returns the problem found.
// It removes missing services from last.
func readOnce(x *index.Index, p *queries.Plan, last map[string]uint64) string {
	f := x.Search(p, index.SearchOptions{Now: epoch()})
	seen := make(map[string]uint64, len(f.Hits))
	for _, h := range f.Hits {
		id, version := h.Record.Name().ID, h.Record.Sequence()
		if _, twice := seen[id]; twice {
			return id + " is there twice"
		}
		if version < last[id] {
			return id + " went back"
		}
		seen[id] = version
	}
	clear(last)
	maps.Copy(last, seen)
	if f.Total != len(f.Hits) {
		return fmt.Sprintf("%d hits of %d", len(f.Hits), f.Total)
	}
	return ""
}

// TestEverythingAtOnce runs every method concurrently, for the race detector.
func TestEverythingAtOnce(t *testing.T) {
	m, s := newMachine(t), seeded(3)
	all := make([]*records.Record, 600)
	for i := range all {
		all[i] = m.sign(t, s)
	}
	p := plan(t, query.Query{Type: "compute", Sort: query.SortPrice})
	x := index.NewInline(index.Config{MaxBytes: 64 << 10, MaxPerProvider: 30}, 8)
	var workers sync.WaitGroup
	each := func(do func(r *records.Record)) {
		workers.Go(func() {
			for _, r := range all {
				do(r)
			}
		})
	}
	each(func(r *records.Record) { _, _ = x.Put(r, epoch()) })
	each(func(r *records.Record) { _, _ = x.Put(r, epoch().Add(time.Minute)) })
	each(func(r *records.Record) { x.Expire(epoch().Add(time.Duration(r.Sequence()) * time.Second)) })
	each(func(r *records.Record) { x.Search(p, index.SearchOptions{Now: epoch()}) })
	each(func(r *records.Record) { x.Get(r.Name()); x.Latest(r.Name()); x.OfProvider(r.Name().Provider) })
	each(func(*records.Record) { x.Stats(); x.NextExpiry(); x.Len(); x.Seq() })
	each(func(*records.Record) {
		for range x.All() {
		}
		x.After(0, 100)
	})
	workers.Wait()
	stats := x.Stats()
	require.LessOrEqual(t, stats.Bytes, stats.MaxBytes)
}
