package keep

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// allEmpty is a peer without full cells.
type allEmpty struct{}

func (allEmpty) CellsOf(r *records.Record) []records.CellKey { return r.Cells() }
func (allEmpty) AnyDeep() bool                               { return false }
func (allEmpty) Full(records.CellKey) bool                   { return false }
func (allEmpty) AllFull() []records.CellKey                  { return nil }
func (allEmpty) Version() uint64                             { return 0 }

// Cells inside other cells are compared through the outer cells, unless one of these is full, here or there. A full cell differs from
// a whole one, and has the records without a place alone.
func TestSharedCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := index.New(index.Config{MaxPerProvider: 10_000})
		recs := keepertest.Spread(t, 60, rand.New(rand.NewPCG(6, 6)))
		recs = append(recs, keepertest.NewProvider(t).Sign(t, keepertest.Offer("nowhere", keepertest.Nowhere), 1, time.Now()))
		for _, r := range recs {
			_, err := x.Put(r, time.Now())
			require.NoError(t, err)
		}
		near := NewTable("self", []peer.ID{"a", "b"}, false)
		small := newView(x, near, time.Now(), allEmpty{}, nil)
		require.Len(t, small.sharedWith("a", false, false).cells, 4, "the global cell, and the cells of three providers")
		require.Same(t, small.sharedWith("a", false, false), small.sharedWith("a", false, false))
		require.Greater(t, len(small.sharedWith("a", false, true).cells), 100)
		require.False(t, small.cells().anyFull("a"))
		global := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
		empty := records.CellKey{Type: "storage", Subtype: records.AnySubtype, Cell: geo.Global}
		full := newView(x, near, time.Now(), &someFull{full: map[records.CellKey]bool{global: true, empty: true}, version: 1}, small)
		require.True(t, full.cells().anyFull("a"))
		h := full.held(global, false)
		require.Equal(t, 1, h.set().Len())
		require.Equal(t, 61, small.held(global, false).set().Len())
		require.Zero(t, full.held(empty, false).set().Len())
		require.NotEqual(t, digest.Version{}, full.held(empty, false).version(), "another peer hears that it is full")
		whole := *h
		whole.full = false
		require.NotEqual(t, whole.version(), h.version())
		require.ElementsMatch(t, slices.Collect(maps.Keys(small.types())), []records.CellKey{global})
	})
}

// A view of a quiet keeper serves until a record expires; another full cell ends it.
func TestQuietViewServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := index.New(index.Config{})
		first := time.Now().Add(24 * time.Hour)
		for _, r := range keepertest.Spread(t, 10, rand.New(rand.NewPCG(8, 8))) {
			_, err := x.Put(r, time.Now())
			require.NoError(t, err)
			if r.Expires().Before(first) {
				first = r.Expires()
			}
		}
		v := newView(x, NewTable("self", nil, true), time.Now(), allEmpty{}, nil)
		now, last := v.made, first.Add(-time.Second)
		require.Greater(t, last.Sub(now), viewMaxTTL)
		require.True(t, v.valid(x.Seq(), 0, last))
		require.False(t, v.valid(x.Seq(), 0, first), "a record expired")
		require.False(t, v.valid(x.Seq()+1, 0, now.Add(viewTTL)), "a record changed")
		require.True(t, v.valid(x.Seq()+1, 0, now.Add(viewTTL-1)))
		require.False(t, v.valid(x.Seq(), 1, now), "a cell became full, or whole")
		require.False(t, v.valid(x.Seq(), 0, now.Add(-viewMaxTTL)), "the clock was set back")
	})
}

// BenchmarkView copies an index as a round does after a change: of the routing table, or of one record.
func BenchmarkView(b *testing.B) {
	x := index.New(index.Config{MaxPerProvider: 100_000})
	recs := keepertest.Spread(b, 10_000, rand.New(rand.NewPCG(7, 7)))
	for _, r := range recs[1:] {
		_, _ = x.Put(r, time.Now())
	}
	for name, whole := range map[string]bool{"whole": true, "cells": false} {
		b.Run(name, func(b *testing.B) {
			near := NewTable("self", keepertest.PeersOf(40), whole)
			for b.Loop() {
				newView(x, near, time.Now(), allEmpty{}, nil).sharedWith("other", whole, false)
			}
		})
	}
	b.Run("next", func(b *testing.B) {
		near := NewTable("self", keepertest.PeersOf(40), false)
		first := newView(x, near, time.Now(), allEmpty{}, nil)
		first.sharedWith("other", false, false)
		_, _ = x.Put(recs[0], time.Now())
		for b.Loop() {
			newView(x, near, time.Now(), allEmpty{}, first).sharedWith("other", false, false)
		}
	})
}
