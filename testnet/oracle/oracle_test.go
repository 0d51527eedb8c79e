package oracle

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
)

// at is a record with a price at a place.
func at(id string, lat, lon, price float64) Record {
	return Record{
		"id": id, "provider_id": "p", "metadata": map[string]any{"type": "compute"}, "location": map[string]any{"latitude": lat, "longitude": lon},
		"pricing": map[string]any{"currency": "USDC", "price_unit": "per-hour", "base_price": price},
	}
}

// answer is a right one.
func answer(q Question, all ...Record) *Answer {
	a := &Answer{Complete: true, Total: len(all)}
	for _, r := range all[:min(len(all), int(q.number("limit")))] {
		a.Results = append(a.Results, struct{ Record Record }{r})
	}
	return a
}

// judged is Judge of an answer that is no matter of rounding.
func judged(t *testing.T, q Question, all []Record, a *Answer) error {
	unsure, wrong := Judge(q, all, a)
	require.False(t, unsure)
	return wrong
}

func TestFaultsAreFound(t *testing.T) {
	all := []Record{at("a", 0, 0, 1), at("b", 0, 1, 1), at("c", 0, 2, 2), at("d", 80, 0, 3)}
	q := Question{"type": "compute", "sort": "price", "limit": 3.0, "near": map[string]any{"latitude": 0.0, "longitude": 0.0, "radius_km": 9000.0}}
	require.NoError(t, judged(t, q, all, answer(q, all...)))
	for name, fault := range map[string]func(a *Answer){
		"lacks one":            func(a *Answer) { a.Results = a.Results[:2] },
		"another one":          func(a *Answer) { a.Results[2].Record = all[3] },
		"one twice":            func(a *Answer) { a.Results[1] = a.Results[0] },
		"a stranger":           func(a *Answer) { a.Results[2].Record = at("e", 0, 0, 2) },
		"another order":        func(a *Answer) { slices.Reverse(a.Results) },
		"ties not by name":     func(a *Answer) { a.Results[0], a.Results[1] = a.Results[1], a.Results[0] },
		"another total":        func(a *Answer) { a.Total = 3 },
		"a total that is more": func(a *Answer) { a.Total, a.AtLeast = 5, true },
	} {
		a := answer(q, all...)
		fault(a)
		require.Error(t, judged(t, q, all, a), name)
	}
	q["near"].(map[string]any)["radius_km"] = q.distance(all[3])
	unsure, _ := Judge(q, all, &Answer{Complete: true})
	require.True(t, unsure, "rounding decides whether the last one is inside")
}

func TestFaultsInCountsAndGroups(t *testing.T) {
	all := []Record{at("a", 52.5, 13.4, 1), at("b", 52.5, 13.4, 1), at("c", 0, 180, 2), {"id": "d", "provider_id": "p", "metadata": map[string]any{"type": "compute"}}}
	const counted = `{"complete":true,"cells":{"length":3,"counts":[{"cell":"800","count":1},{"cell":"u33","count":2}],"unplaced":1}}`
	const grouped = `{"complete":true,"results":[],"price_groups":[]}`
	for text, q := range map[string]Question{counted: {"type": "compute", "cells": 3.0}, grouped: {"type": "compute", "group_prices": true, "limit": 1.0}} {
		var a Answer
		require.NoError(t, read([]byte(text), &a))
		if text == counted {
			require.NoError(t, judged(t, q, all, &a))
			a.Cells.Counts[1].Count--
			require.ErrorContains(t, judged(t, q, all, &a), "1 records in cell u33 instead of 2")
			a.Cells.Counts[1].Count++
			a.Cells.Unplaced = 0
		}
		require.ErrorContains(t, judged(t, q, all, &a), "no ")
	}
}

// The text of each clause means what its JSON means.
func TestTextOfClauses(t *testing.T) {
	d := draws{rand.New(rand.NewPCG(1, 2))}
	for range 2000 {
		c := d.clause("compute")
		got, err := queries.ParseClause(c.text())
		require.NoError(t, err, c.text())
		require.Equal(t, query.Clause{Field: c.Field, Op: query.Op(c.Op), Values: c.Values, Min: c.Min, Max: c.Max, Not: c.Not, OrUnstated: c.OrUnstated}, got, c.text())
	}
}
