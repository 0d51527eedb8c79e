package compare

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/digest"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/pkg/records"
)

// unsplit is a peer without split cells.
type unsplit struct{}

func (unsplit) CellsOf(r *records.Record) []records.CellKey { return r.Cells() }

func (unsplit) SampleOf(records.CellKey) map[digest.ID]struct{} { return nil }

func (unsplit) AnyDeep() bool { return false }

// Cells inside other cells are compared through the outer cells, unless these are split.
func TestSharedCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := index.New(index.Config{MaxPerProvider: 10_000})
		for _, r := range keepertest.Spread(t, 60, rand.New(rand.NewPCG(6, 6))) {
			_, err := x.Put(r, time.Now())
			require.NoError(t, err)
		}
		near := route.NewTable("self", []peer.ID{"a", "b"}, false)
		small := newView(x, near, time.Now(), unsplit{}, nil)
		require.Len(t, small.sharedWith("a", false).cells, 3, "the global cell, and the cells of two providers")
		require.Same(t, small.sharedWith("a", false), small.sharedWith("a", false))
		split := &sampling{samples: make(map[records.CellKey]map[digest.ID]struct{})}
		for c := range small.cells().cells {
			if c.Cell == "global" && !c.OfProvider() {
				split.samples[c] = map[digest.ID]struct{}{}
			}
		}
		rest := newView(x, near, time.Now(), split, small).sharedWith("a", false)
		require.Greater(t, len(rest.cells), 2)
		for _, h := range rest.cells {
			require.True(t, h.cell.OfProvider() || h.cell.Cell == "global" || h.cell.Cell.Len() == 1 && h.cell.Subtype == records.AnySubtype, h.key)
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(small.types())), []records.CellKey{{Type: "compute", Subtype: "_", Cell: "global"}})
	})
}

// A view of a quiet keeper serves until a record expires; with split cells, which change without the index, a minute.
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
		v := newView(x, route.NewTable("self", nil, true), time.Now(), unsplit{}, nil)
		now, last := v.made, first.Add(-time.Second)
		require.Greater(t, last.Sub(now), viewMaxTTL)
		require.True(t, v.valid(x.Seq(), last, false))
		require.False(t, v.valid(x.Seq(), first, false), "a record expired")
		require.False(t, v.valid(x.Seq()+1, now.Add(viewTTL), false), "a record changed")
		require.True(t, v.valid(x.Seq()+1, now.Add(viewTTL-1), false))
		require.True(t, v.valid(x.Seq(), now.Add(viewMaxTTL-1), true))
		require.False(t, v.valid(x.Seq(), now.Add(viewMaxTTL), true), "split cells")
		require.False(t, v.valid(x.Seq(), now.Add(-viewMaxTTL), false), "the clock was set back")
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
			near := route.NewTable("self", keepertest.PeersOf(40), whole)
			for b.Loop() {
				newView(x, near, time.Now(), unsplit{}, nil).sharedWith("other", whole)
			}
		})
	}
	b.Run("next", func(b *testing.B) {
		near := route.NewTable("self", keepertest.PeersOf(40), false)
		first := newView(x, near, time.Now(), unsplit{}, nil)
		first.sharedWith("other", false)
		_, _ = x.Put(recs[0], time.Now())
		for b.Loop() {
			newView(x, near, time.Now(), unsplit{}, first).sharedWith("other", false)
		}
	})
}
