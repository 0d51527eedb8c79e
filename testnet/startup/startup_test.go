package startup

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
)

// TestPlans: every seed has a plan of its own, the same each time, in which whoever comes back was there before.
func TestPlans(t *testing.T) {
	orders := make(map[string]bool)
	killed, long := 0, 0
	for seed := range uint64(200) {
		p := draw(seed, Peers)
		require.Equal(t, p, draw(seed, Peers))
		orders[p.order()] = true
		killed += p.killed()
		for _, o := range p.outages {
			require.True(t, o.kill == 0 && o.back == 0 || o.kill > 0 && o.back >= o.kill)
		}
		require.Len(t, p.visits, arrivals)
		for _, v := range p.visits {
			require.True(t, v.again == 0 || v.again >= v.at)
			require.True(t, v.leave == 0 || v.leave >= v.at && v.again == 0)
		}
		for _, v := range append(p.moving, p.parting...) {
			n := slices.IndexFunc(p.visits, func(u visit) bool { return u.id == v.id })
			require.Zero(t, p.visits[n].again+p.visits[n].leave, "it has nothing else to do")
		}
		require.NotEmpty(t, p.side)
		require.LessOrEqual(t, len(p.side), Peers/2)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(p.side))), len(p.side))
		if p.cut >= longCut {
			long++
		}
	}
	require.Greater(t, len(orders), 190)
	require.Positive(t, killed)
	require.Equal(t, 200/longEvery, long)
	require.Equal(t, "2! 1 3", plan{starts: []time.Duration{2, 1, 3}, outages: []outage{{}, {kill: 1, back: 2}, {}}}.order())
}

func instance(id string, turn any) app.Instance {
	return app.Instance{ID: id, Metadata: map[string]any{turnKey: turn}}
}

// TestCompare: each way in which a list can be wrong is found, and told.
func TestCompare(t *testing.T) {
	want := map[string]entry{"a": {turn: 1}, "b": {turn: 2, committed: true, sure: true}, "c": {turn: 1, gone: true, uncertain: true}}
	a, b, c := instance("a", "1"), instance("b", "2"), instance("c", "1")
	require.NoError(t, compare(app.List{Instances: []app.Instance{a, b}}, want))
	require.NoError(t, compare(app.List{Instances: []app.Instance{a, b, c}}, want), "nobody knows")
	require.NoError(t, compare(app.List{Instances: []app.Instance{instance("a", "0"), b}}, want), "it was never committed")
	for message, l := range map[string]app.List{
		"stale":              {Instances: []app.Instance{a, b}, Stale: true},
		"missing [b]":        {Instances: []app.Instance{a}},
		"twice [b]":          {Instances: []app.Instance{a, b, b}},
		"not registered [x]": {Instances: []app.Instance{a, b, instance("x", "1")}},
		"before [b]":         {Instances: []app.Instance{a, instance("b", "1")}},
		"missing [a b]":      {},
	} {
		require.ErrorContains(t, compare(l, want), message)
	}
}

// TestNote: what is expected follows from what applications were told, and from what they were not.
func TestNote(t *testing.T) {
	r := &run{book: make(map[string]entry)}
	p := &peer{name: "peer-1"}
	lost := fault.New("x", fault.Unavailable, "no answer")

	r.note(p, "plain", entry{turn: 1, committed: true}, nil)
	r.note(p, "moved", entry{turn: 1, committed: true}, nil)
	r.note(p, "moved", entry{turn: 2, committed: true}, nil)
	r.note(p, "raced", entry{turn: 1}, nil)
	r.note(p, "raced", entry{turn: 2, committed: true}, nil)
	r.note(p, "retried", entry{turn: 1}, lost)
	r.note(p, "retried", entry{turn: 1, committed: true}, nil)
	r.note(p, "left", entry{turn: 1, committed: true}, nil)
	r.note(p, "left", entry{gone: true}, lost)
	r.note(p, "left", entry{gone: true}, nil)
	r.note(p, "perhaps", entry{turn: 1}, lost)
	r.note(p, "perhaps", entry{turn: 1}, nil)
	r.note(p, "perhaps", entry{gone: true}, nil)
	r.note(p, "unknown", entry{turn: 1, committed: true}, nil)
	r.note(p, "unknown", entry{gone: true, uncertain: true}, nil)

	got := r.expected()
	for id, want := range map[string]entry{
		"plain": {turn: 1, committed: true, sure: true}, "moved": {turn: 2, committed: true, sure: true},
		"raced": {turn: 2, committed: true}, "retried": {turn: 1, committed: true, uncertain: true},
		"perhaps": {turn: 1, gone: true, uncertain: true}, "unknown": {turn: 1, gone: true, uncertain: true},
	} {
		e := got[id]
		require.NotEmpty(t, e.story)
		e.story = nil
		require.Equal(t, want, e, id)
		delete(got, id)
	}
	require.Empty(t, got)
	require.Equal(t, Outcome{Committed: 7, Kept: 2, Refused: 3, Deregistered: 3}, r.outcome)
	r.settle()
	require.True(t, r.book["plain"].sure)
	require.False(t, r.book["raced"].sure, "the first may still be under way")
	require.False(t, r.book["retried"].sure)
	r.note(p, "kept", entry{turn: 1}, nil)
	r.settle()
	r.note(p, "kept", entry{turn: 2, committed: true}, nil)
	require.True(t, r.book["kept"].sure)
	require.Contains(t, r.stories("lost: left"), "turn 1 at peer-1: no: no answer")
}

func TestRunTellsWhatItCannot(t *testing.T) {
	_, err := Run(t.Context(), Config{Dir: t.TempDir(), Binary: "/nonexistent", Peers: 2, Founders: 1, Bound: time.Second})
	require.Error(t, err)
	require.False(t, errors.Is(err, fault.Internal), err)
	dir := t.TempDir()
	c := Config{Dir: dir + "/missing", Peers: 2}
	_, err = Run(t.Context(), c)
	require.ErrorIs(t, err, fault.Invalid)
}
