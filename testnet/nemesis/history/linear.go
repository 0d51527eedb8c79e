package history

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Forever is the return time of an operation without a known end.
const Forever = time.Duration(math.MaxInt64)

// settle resolves a write with an unknown outcome by the events: a write without an event had no
// effect and is left out; a write with an event took effect before its first observation.
func (c *checker) settle(o Op) (Op, bool) {
	if o.Outcome != Unknown {
		return o, true
	}
	e, done := c.written[o.Value]
	if !done || o.Kind == Read {
		return o, false
	}
	o.Outcome, o.Return, o.Revision = OK, max(e.Seen, o.Call), e.Revision
	return o, true
}

// registers checks H1 for each key with puts, swaps and reads.
func (c *checker) registers(v *collector) {
	keys := make(map[string][]Op)
	for _, o := range c.Ops {
		if o.Kind != Put && o.Kind != Swap && o.Kind != Read || o.Lock != "" {
			continue
		}
		if o, ok := c.settle(o); ok && !(o.Kind != Swap && o.Outcome == Refused) {
			keys[o.Object] = append(keys[o.Object], o)
		}
	}
	c.explain(v, keys, Register())
}

// tries checks H2 for each lock with tries only.
func (c *checker) tries(v *collector) {
	waited := make(map[string]bool)
	for _, o := range c.Ops {
		waited[o.Object] = waited[o.Object] || o.Kind == Lock
	}
	locks := make(map[string][]Op)
	for _, o := range c.Ops {
		if o.Kind != Try || waited[o.Object] {
			continue
		}
		if o.Outcome == Unknown {
			e, done := c.made[o.metadata()]
			if !done {
				continue
			}
			o.Outcome, o.Token, o.Return = OK, e.Create, max(e.Seen, o.Call)
		}
		locks[o.Object] = append(locks[o.Object], o)
		if o.Outcome == OK {
			locks[o.Object] = c.ending(locks[o.Object], o)
		}
	}
	c.explain(v, locks, TryLock())
}

// ending adds the end of a claim: its unlock, or for an unrenewed lease some time before a watch
// saw the end.
func (c *checker) ending(ops []Op, o Op) []Op {
	of := claim{o.Object, o.Token}
	given, asked := c.given[of]
	gone, seen := c.ended[of]
	end := Op{ID: o.ID, Client: o.Client, Kind: Unlock, Object: o.Object, Token: o.Token, Call: o.Call, Return: Forever}
	if asked && given.Outcome == OK {
		end.Call, end.Return = given.Call, given.Return
	}
	if seen {
		end.Return = max(end.Call, min(end.Return, gone.Seen))
	}
	return append(ops, end)
}

// fenced checks H3 for each lock with a guarded key.
func (c *checker) fenced(v *collector) {
	locks := make(map[string][]Op)
	for _, o := range c.Ops {
		if o.Kind == Guarded {
			locks[o.Lock] = nil
		}
	}
	for _, o := range c.Ops {
		name := o.Lock
		if o.acquired() {
			name = o.Object
		}
		if _, guards := locks[name]; !guards || !o.acquired() && o.Kind != Guarded && o.Kind != Read {
			continue
		}
		if o, ok := c.settle(o); ok && o.Outcome == OK {
			locks[name] = append(locks[name], o)
		}
	}
	c.explain(v, locks, guard())
}

// explain asks porcupine for an order of the operations on each object that explains all results.
func (c *checker) explain(v *collector, objects map[string][]Op, model porcupine.Model) {
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		v.Checked += len(objects[name])
		if why := Explain(objects[name], model, c.patience); why != "" {
			v.violated("%s: %s", name, why)
		}
	}
}

// Explain asks porcupine for an order of the operations on one object that explains all results. It returns why there is none, or that
// none was found in time; empty: there is one.
func Explain(ops []Op, model porcupine.Model, patience time.Duration) (why string) {
	switch porcupine.CheckOperationsTimeout(model, operations(ops), patience) {
	case porcupine.Illegal:
		return fmt.Sprintf("no order explains the %d operations; the last ones that fit nowhere:\n%s", len(ops), stuck(ops, model))
	case porcupine.Unknown:
		return fmt.Sprintf("the %d operations are not decided in %v", len(ops), patience)
	}
	return ""
}

func operations(ops []Op) []porcupine.Operation {
	all := make([]porcupine.Operation, len(ops))
	for i, o := range ops {
		all[i] = porcupine.Operation{Input: o, Output: o, Call: int64(o.Call), Return: int64(o.Return)}
	}
	return all
}

// stuck shows the end of the shortest history prefix without an explanation.
func stuck(ops []Op, model porcupine.Model) string {
	slices.SortFunc(ops, func(a, b Op) int { return int(a.Call - b.Call) })
	fits := func(n int) bool {
		return porcupine.CheckOperationsTimeout(model, operations(ops[:n]), time.Second) != porcupine.Illegal
	}
	low, high := 0, len(ops) // low fits, high does not
	for low+1 < high {
		if middle := (low + high) / 2; fits(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	const shown = 12
	var b strings.Builder
	for _, o := range ops[max(0, high-shown):high] {
		b.WriteString("  " + o.String() + "\n")
	}
	return b.String()
}

// Register is the model of a key.
func Register() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, in, _ any) (bool, any) {
			switch o := in.(Op); {
			case o.Kind == Read:
				return state == any(o.Value), state
			case o.Kind == Swap && o.Outcome == Refused:
				return state != any(o.Old), state
			case o.Kind == Swap:
				return state == any(o.Old), o.Value
			default:
				return true, o.Value
			}
		},
	}
}

// holder is the current holder of a lock (0 for none) and the greatest granted token.
type holder struct{ token, last int64 }

// TryLock is the model of an exclusive lock without a queue. An unlock may be the end of a lease.
func TryLock() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return holder{} },
		Step: func(state, in, _ any) (bool, any) {
			s := state.(holder)
			switch o := in.(Op); {
			case o.Kind == Try && o.Outcome == OK:
				return s.token == 0 && o.Token > s.last, holder{o.Token, o.Token}
			case o.Kind == Try:
				return s.token != 0, s
			default:
				return s.token == o.Token, holder{0, s.last}
			}
		},
	}
}

// guarded is a value with the last granted token of its lock.
type guarded struct {
	token int64
	value string
}

// guard is the model of a key written by holders of an exclusive lock: only the last holder
// succeeds.
func guard() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return guarded{} },
		Step: func(state, in, _ any) (bool, any) {
			s := state.(guarded)
			switch o := in.(Op); o.Kind {
			case Read:
				return s.value == o.Value, s
			case Guarded:
				return s.token == o.Token, guarded{s.token, o.Value}
			default:
				return o.Token > s.token, guarded{o.Token, s.value}
			}
		},
	}
}

// Resource is the model of an outside resource that checks tokens: a write succeeds unless a greater token wrote before. One whose outcome
// is not known may do so.
func Resource() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return guarded{} },
		Step: func(state, in, _ any) (bool, any) {
			s := state.(guarded)
			switch o := in.(Op); {
			case o.Kind == Read:
				return s.value == o.Value, s
			case o.Token < s.token:
				return o.Outcome != OK, s
			default:
				return o.Outcome != Refused, guarded{o.Token, o.Value}
			}
		},
	}
}
