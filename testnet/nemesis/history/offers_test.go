package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answer is a complete answer from one second after the other, with one version of the offer "a".
func answer(asked, answered, version int) Answer {
	a := Answer{From: "peer", Asked: time.Duration(asked) * time.Second, Answered: time.Duration(answered) * time.Second, Complete: true}
	if version > 0 {
		a.Found = map[string]int{"a": version}
	}
	return a
}

// The rule P on one offer: registered at second 10 to 11, updated at 20 to 21 without some keepers, updated at 80
// without an answer, withdrawn at 100 to 101.
func TestOffers(t *testing.T) {
	o := NewOffers(40 * time.Second)
	at := func(s int) time.Duration { return time.Duration(s) * time.Second }
	require.Equal(t, 1, o.Begin("a", false, at(10)))
	o.Acknowledge("a", true, at(11))
	require.Equal(t, 2, o.Begin("a", false, at(20)))
	o.Acknowledge("a", false, at(21))
	require.Equal(t, 3, o.Begin("a", false, at(80)))
	require.Equal(t, 0, o.Begin("a", true, at(100)))
	o.Acknowledge("a", true, at(101))
	require.Equal(t, 4, o.Begin("a", false, at(200)), "a version never comes twice")

	for _, c := range []struct {
		asked, answered, version int
		wrong, late              bool
		why                      string
	}{
		{5, 6, 0, false, false, "not registered yet"},
		{5, 6, 1, true, false, "from the future"},
		{9, 10, 1, false, false, "in flight"},
		{9, 10, 0, false, false, "in flight"},
		{12, 13, 1, false, false, ""},
		{12, 13, 0, true, false, "acknowledged by all keepers before the question"},
		{22, 23, 2, false, false, ""},
		{22, 23, 1, false, true, "some keepers lack it"},
		{60, 61, 1, false, true, "the window ends at 61"},
		{62, 63, 1, true, false, "after the window"},
		{90, 91, 2, false, false, "an update without an answer may have failed"},
		{90, 91, 3, false, false, "or not"},
		{90, 91, 0, true, false, ""},
		{102, 103, 3, true, false, "withdrawn"},
		{102, 103, 0, false, false, ""},
	} {
		wrong, late := o.contrast(answer(c.asked, c.answered, c.version))
		require.Equal(t, c.wrong, wrong != "", "%+v: %s", c, wrong)
		require.Equal(t, c.late, late != "", "%+v: %s", c, late)
		require.Equal(t, wrong+late, o.Differs(answer(c.asked, c.answered, c.version)))
	}
	o.Judge(answer(22, 23, 1))
	o.Judge(answer(12, 13, 0))
	o.Judge(Answer{Asked: at(12), Answered: at(13)}) // says that it is not complete
	o.Fail()
	o.Judge(Answer{Complete: true, Found: map[string]int{"b": 1}})
	require.Equal(t, Answers{Complete: 3, Incomplete: 1, Failed: 1, Late: 1}, o.Counts())
	result := o.Result()
	require.Len(t, result.Violations, 2)
	require.Contains(t, result.Violations[0].String(), "it has version 0 of a, expected [1] (0 is none)")
	require.Contains(t, result.Violations[1].String(), "it has b, which nobody registered")
}

// A change of a provider that is cut off is everywhere a window after it has contact again.
func TestOffersOfACutProvider(t *testing.T) {
	at := func(s int) time.Duration { return time.Duration(s) * time.Second }
	for _, c := range []struct {
		began, healed, asked int // the cut; the change is acknowledged at 21
		other, full          bool
		wrong                bool
	}{
		{began: 10, asked: 100},
		{began: 10, healed: 90, asked: 129},
		{began: 10, healed: 90, asked: 131, wrong: true},
		{began: 50, healed: 90, asked: 129},
		{began: 70, healed: 90, asked: 100, wrong: true}, // the window ended before
		{began: 10, healed: 20, asked: 62, wrong: true},
		{began: 10, healed: 90, asked: 62, other: true, wrong: true},
		{began: 10, healed: 90, asked: 62, full: true, wrong: true},
	} {
		o := NewOffers(40 * time.Second)
		o.Begin("p-1-offer-1", false, at(1))
		o.Acknowledge("p-1-offer-1", true, at(2))
		o.Begin("p-1-offer-1", false, at(20))
		o.Acknowledge("p-1-offer-1", c.full, at(21))
		prefix := "p-1-"
		if c.other {
			prefix = "p-2-"
		}
		o.Cut(prefix, at(c.began))
		o.Cut(prefix, at(c.began+1))
		if c.healed > 0 {
			o.Heal(at(c.healed))
		}
		o.Judge(Answer{Asked: at(c.asked), Answered: at(c.asked + 1), Complete: true, Found: map[string]int{"p-1-offer-1": 1}})
		require.Equal(t, c.wrong, len(o.Result().Violations) > 0, "%+v", c)
	}
}
