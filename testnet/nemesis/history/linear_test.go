package history

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// at is an operation from one moment to another.
func at(from, to time.Duration, o Op) Op {
	o.Call, o.Return = from, to
	if o.Outcome == "" {
		o.Outcome = OK
	}
	return o
}

// TestModels: each model refuses a bad example and accepts a good one.
func TestModels(t *testing.T) {
	wrote := func(from, to time.Duration, v string) Op { return at(from, to, Op{Kind: Put, Value: v}) }
	saw := func(from, to time.Duration, v string) Op { return at(from, to, Op{Kind: Read, Value: v}) }
	swapped := func(from, to time.Duration, outcome Outcome) Op {
		return at(from, to, Op{Kind: Swap, Old: "a", Value: "c", Outcome: outcome})
	}
	tried := func(from, to time.Duration, token int64) Op { return at(from, to, Op{Kind: Try, Token: token}) }
	refused := func(from, to time.Duration) Op { return at(from, to, Op{Kind: Try, Outcome: Refused}) }
	ended := func(from, to time.Duration, token int64) Op { return at(from, to, Op{Kind: Unlock, Token: token}) }
	sent := func(from, to time.Duration, token int64, v string, outcome Outcome) Op {
		return at(from, to, Op{Kind: Fenced, Token: token, Value: v, Outcome: outcome})
	}
	for _, c := range []struct {
		name  string
		model porcupine.Model
		legal bool
		ops   []Op
	}{
		{"a read sees the last write", Register(), true, []Op{wrote(0, 1, "a"), wrote(2, 3, "b"), saw(4, 5, "b")}},
		{"a read is stale", Register(), false, []Op{wrote(0, 1, "a"), wrote(2, 3, "b"), saw(4, 5, "a")}},
		{"a read sees a write under way", Register(), true, []Op{wrote(0, 9, "a"), saw(2, 3, "a"), saw(4, 5, "a")}},
		{"a write is taken back", Register(), false, []Op{wrote(0, 9, "a"), saw(2, 3, "a"), saw(4, 5, "")}},
		{"a swap of another value", Register(), false, []Op{wrote(0, 1, "b"), swapped(2, 3, OK)}},
		{"a swap is refused for no reason", Register(), false, []Op{wrote(0, 1, "a"), swapped(2, 3, Refused)}},

		{"a lock changes hands", TryLock(), true, []Op{tried(0, 1, 5), refused(2, 3), ended(4, 5, 5), tried(6, 7, 9)}},
		{"a lock is held twice", TryLock(), false, []Op{tried(0, 1, 5), tried(2, 3, 9)}},
		{"a lock is free before the lease ends", TryLock(), false, []Op{tried(0, 1, 5), tried(2, 3, 9), ended(4, 5, 5)}},
		{"a token falls", TryLock(), false, []Op{tried(0, 1, 5), ended(2, 2, 5), tried(3, 4, 4)}},
		{"a free lock is refused", TryLock(), false, []Op{tried(0, 1, 5), ended(2, 2, 5), refused(3, 4)}},
		{"a lock is released with another's token", TryLock(), false, []Op{tried(0, 1, 5), ended(2, 3, 4)}},

		{"a stale token is refused", Resource(), true, []Op{sent(0, 1, 5, "a", OK), sent(2, 3, 4, "b", Refused), saw(4, 5, "a")}},
		{"a stale token is accepted", Resource(), false, []Op{sent(0, 1, 5, "a", OK), sent(2, 3, 4, "b", OK)}},
		{"a good token is refused", Resource(), false, []Op{sent(0, 1, 5, "a", OK), sent(2, 3, 6, "b", Refused)}},
		{"an outcome is not known", Resource(), true, []Op{sent(0, 1, 5, "a", OK), sent(2, 9, 6, "b", Unknown), saw(3, 4, "b")}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.legal, Explain(c.ops, c.model, time.Minute) == "") })
	}
}
