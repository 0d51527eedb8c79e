package history

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func changes() []Event {
	return []Event{
		{Revision: 1, Key: "a", Value: "1", Create: 1, Version: 1},
		{Revision: 2, Key: "a", Value: "2", Create: 1, Version: 2, Replaces: 1},
		{Revision: 2, Key: "b", Value: "3", Create: 2, Version: 1},
		{Revision: 4, Key: "a", Deleted: true, Create: 1, Version: 2, Replaces: 2},
		{Revision: 5, Key: "a", Value: "4", Create: 5, Version: 1},
	}
}

func TestWatchesThatAgree(t *testing.T) {
	var l EventLog
	all := changes()
	first, second := l.Follow("first"), l.Follow("second")
	first.Take(all[:1], 2)
	second.Take(all[:3], 4)
	first.Take(nil, 2)
	first.Take(all[1:], 9)
	second.Take(all[3:], 6)
	require.Empty(t, l.Result().Violations)
	require.Equal(t, 5, l.Result().Checked)
	require.Equal(t, all, l.Events())
	require.Equal(t, int64(9), first.Next())
	require.Len(t, l.Keys(2), 2)
	require.Len(t, l.Keys(4), 1)
	require.Equal(t, "4", l.Keys(5)["a"].Value)
}

func TestWatchesThatDoNotAgree(t *testing.T) {
	type step struct {
		events []Event
		next   int64
	}
	all := changes()
	other := func(i int, change func(*Event)) []Event {
		list := changes()
		change(&list[i])
		return list
	}
	for name, steps := range map[string][]step{
		"gap":                       {{append(changes()[:1], all[2:]...), 6}},
		"gap at the end":            {{all[:4], 6}},
		"passed without":            {{nil, 6}},
		"twice":                     {{all[:1], 2}, {all, 6}},
		"twice in one batch":        {{append(changes()[:1], all...), 6}},
		"order":                     {{[]Event{all[1], all[0]}, 3}},
		"another value":             {{other(1, func(e *Event) { e.Value = "x" }), 6}},
		"another version":           {{other(2, func(e *Event) { e.Version = 7 }), 6}},
		"put in place of deletion":  {{other(3, func(e *Event) { e.Deleted = false }), 6}},
		"one too many":              {{append(changes(), Event{Revision: 6, Key: "z", Create: 6, Version: 1}), 6}},
		"back":                      {{all[:1], 2}, {nil, 1}},
		"part of a revision":        {{all[:2], 3}},
		"events beyond the mark":    {{all, 3}},
		"other events at the start": {{other(0, func(e *Event) { e.Key = "x" }), 6}},
	} {
		var l EventLog
		l.Follow("right").Take(all, 6)
		s := l.Follow("wrong")
		for _, step := range steps {
			s.Take(step.events, step.next)
		}
		require.NotEmpty(t, l.Result().Violations, name)
	}
}

// TestFirstWatchIsHeldToOrder: with nobody to compare it with, too.
func TestFirstWatchIsHeldToOrder(t *testing.T) {
	for name, list := range map[string][]Event{
		"order":    {changes()[1], changes()[0]},
		"twice":    {changes()[0], changes()[0]},
		"replaces": {changes()[0], {Revision: 3, Key: "a", Create: 1, Version: 3, Replaces: 2}},
		"no event": {changes()[1]},
	} {
		var l EventLog
		l.Follow("only").Take(list, 9)
		require.NotEmpty(t, l.Result().Violations, name)
	}
}

type belief bool

func (b *belief) Check() error {
	if *b {
		return nil
	}
	return errors.New("lost")
}

func TestBeliefs(t *testing.T) {
	yes := func() *belief { b := belief(true); return &b }
	modes := func(m ...Mode) []Mode { return m }
	for _, c := range []struct {
		modes []Mode
		right bool
	}{
		{modes(Exclusive), true},
		{modes(Exclusive, Exclusive), false},
		{modes(Shared, Shared, Shared), true},
		{modes(Shared, Exclusive), false},
		{modes(Exclusive, Shared), false},
		{modes(Permit, Permit), true},
		{modes(Permit, Permit, Permit), false},
		{modes(Permit, Shared), false},
	} {
		var b Beliefs
		var ended Beliefs
		for _, m := range c.modes {
			b.Enter(Op{Object: "l", Mode: m}, 2, yes())
			one := yes()
			ended.Enter(Op{Object: "l", Mode: m}, 2, one)
			*one = false
		}
		b.Enter(Op{Object: "another", Mode: Exclusive}, 2, yes())
		require.Equal(t, c.right, len(b.Result().Violations) == 0, c.modes)
		require.Empty(t, ended.Result().Violations)
	}
	var b Beliefs
	b.Lost(Op{}, new(belief))
	require.Empty(t, b.Result().Violations)
	b.Lost(Op{}, yes())
	require.NotEmpty(t, b.Result().Violations)
}
