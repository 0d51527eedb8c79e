package scenario

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
)

func listed(id string, turn any) app.Instance {
	return app.Instance{ID: id, Metadata: map[string]any{turnKey: turn}}
}

// TestCompare: each way in which a list can be wrong is found, and told.
func TestCompare(t *testing.T) {
	want := map[string]entry{"a": {turn: 1}, "b": {turn: 2, committed: true, sure: true}, "c": {turn: 1, gone: true, uncertain: true}}
	a, b, c := listed("a", "1"), listed("b", "2"), listed("c", "1")
	require.NoError(t, compare(app.List{Instances: []app.Instance{a, b}}, want))
	require.NoError(t, compare(app.List{Instances: []app.Instance{a, b, c}}, want), "nobody knows")
	require.NoError(t, compare(app.List{Instances: []app.Instance{listed("a", "0"), b}}, want), "it was never committed")
	for message, l := range map[string]app.List{
		"stale":              {Instances: []app.Instance{a, b}, Stale: true},
		"missing [b]":        {Instances: []app.Instance{a}},
		"twice [b]":          {Instances: []app.Instance{a, b, b}},
		"not registered [x]": {Instances: []app.Instance{a, b, listed("x", "1")}},
		"before [b]":         {Instances: []app.Instance{a, listed("b", "1")}},
		"missing [a b]":      {},
	} {
		require.ErrorContains(t, compare(l, want), message)
	}
}

// TestNote: what is expected follows from what applications were told, and from what they were not.
func TestNote(t *testing.T) {
	l, p := &ledger{book: make(map[string]entry)}, "peer-1"
	lost := fault.New("x", fault.Unavailable, "no answer")

	l.note(p, "plain", entry{turn: 1, committed: true}, nil)
	l.note(p, "moved", entry{turn: 1, committed: true}, nil)
	l.note(p, "moved", entry{turn: 2, committed: true}, nil)
	l.note(p, "raced", entry{turn: 1}, nil)
	l.note(p, "raced", entry{turn: 2, committed: true}, nil)
	l.note(p, "retried", entry{turn: 1}, lost)
	l.note(p, "retried", entry{turn: 1, committed: true}, nil)
	l.note(p, "left", entry{turn: 1, committed: true}, nil)
	l.note(p, "left", entry{gone: true}, lost)
	l.note(p, "left", entry{gone: true}, nil)
	l.note(p, "perhaps", entry{turn: 1}, lost)
	l.note(p, "perhaps", entry{turn: 1}, nil)
	l.note(p, "perhaps", entry{gone: true}, nil)
	l.note(p, "unknown", entry{turn: 1, committed: true}, nil)
	l.note(p, "unknown", entry{gone: true, uncertain: true}, nil)

	got := l.expected()
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
	l.settle()
	require.True(t, l.book["plain"].sure)
	require.False(t, l.book["raced"].sure, "the first may still be under way")
	require.False(t, l.book["retried"].sure)
	l.note(p, "kept", entry{turn: 1}, nil)
	l.settle()
	l.note(p, "kept", entry{turn: 2, committed: true}, nil)
	require.True(t, l.book["kept"].sure)
	require.Contains(t, l.stories("lost: left"), "turn 1 at peer-1: no: no answer")
}
