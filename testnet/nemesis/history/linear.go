package history

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// forever is the return time of an operation without a known end.
const forever = time.Duration(math.MaxInt64)

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
	c.explain(v, keys, register())
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
	c.explain(v, locks, lock())
}

// ending adds the end of a claim: its unlock, or for an unrenewed lease some time before a watch
// saw the end.
func (c *checker) ending(ops []Op, o Op) []Op {
	of := claim{o.Object, o.Token}
	given, asked := c.given[of]
	gone, seen := c.ended[of]
	end := Op{ID: o.ID, Client: o.Client, Kind: Unlock, Object: o.Object, Token: o.Token, Call: o.Call, Return: forever}
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
		ops := make([]porcupine.Operation, len(objects[name]))
		for i, o := range objects[name] {
			ops[i] = porcupine.Operation{Input: o, Output: o, Call: int64(o.Call), Return: int64(o.Return)}
		}
		v.Checked += len(ops)
		switch porcupine.CheckOperationsTimeout(model, ops, c.patience) {
		case porcupine.Illegal:
			v.violated("no order explains the %d operations on %s; the last ones that fit nowhere:\n%s",
				len(ops), name, stuck(objects[name], model))
		case porcupine.Unknown:
			v.violated("not decided in %v: the %d operations on %s", c.patience, len(ops), name)
		}
	}
}

// stuck shows the end of the shortest history prefix without an explanation.
func stuck(ops []Op, model porcupine.Model) string {
	slices.SortFunc(ops, func(a, b Op) int { return int(a.Call - b.Call) })
	fits := func(n int) bool {
		var some []porcupine.Operation
		for _, o := range ops[:n] {
			some = append(some, porcupine.Operation{Input: o, Output: o, Call: int64(o.Call), Return: int64(o.Return)})
		}
		return porcupine.CheckOperationsTimeout(model, some, time.Second) != porcupine.Illegal
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

// register is the model of a key.
func register() porcupine.Model {
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

// lock is the model of an uncontended exclusive lock.
func lock() porcupine.Model {
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
