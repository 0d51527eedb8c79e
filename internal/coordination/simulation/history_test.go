package simulation

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// verdictIn is the real time for the check of one object. A check of 15 virtual minutes takes 3 ms, so that one
// without a verdict hides something.
const verdictIn = 20 * time.Second

type kind int

const (
	write  kind = iota // of a register
	swap               // the same, if it has the old value
	read               // the same
	fenced             // write of a resource that checks tokens
	try                // of a lock
	unlock             // the same
	end                // of the lease that holds it
)

type input struct {
	kind       kind
	key        string
	value, old string
	token      coord.Token
}

type output struct {
	ok    bool
	token coord.Token
	value string
}

// operation is one client's action and observation.
type operation struct {
	client   string
	input    input
	output   output
	call     call // the oracle knows its outcome
	known    bool // the client knows the outcome
	open     bool // unknown
	from, to time.Duration
}

// history collects operations by object.
type history struct {
	oracle  *oracle
	objects map[string][]operation
	total   int
}

func newHistory(o *oracle) *history {
	return &history{oracle: o, objects: make(map[string][]operation)}
}

func (h *history) add(o operation) {
	h.objects[o.input.key] = append(h.objects[o.input.key], o)
	h.total++
}

// ended records the end of a lease for its locks, at the first application by a member.
func (h *history) ended(id coord.LeaseID, claims []*coord.KeyValue) {
	for _, kv := range claims {
		if claim, ok := kv.Claim(); ok && kv.Lease == id && strings.HasPrefix(claim.Lock, "try/") {
			h.add(operation{
				client: "end", input: input{kind: end, key: claim.Lock, token: kv.Token()}, known: true,
				from: h.oracle.now, to: h.oracle.now,
			})
		}
	}
}

// check asks whether some order explains the history of each object.
func (h *history) check(w *scheduler) {
	for _, key := range slices.Sorted(maps.Keys(h.objects)) {
		if w.fail != nil {
			return
		}
		rule, model := "H1", registers()
		switch {
		case strings.HasPrefix(key, "try/"):
			rule, model = "H2", locks()
		case strings.HasPrefix(key, "resource/"):
			rule, model = "H3", resources()
		}
		switch porcupine.CheckOperationsTimeout(model, h.operations(key), verdictIn) {
		case porcupine.Illegal:
			w.breach(rule, "the history of %q is not linearizable:\n%s", key, h.describe(key))
		case porcupine.Unknown:
			w.breach(rule, "the history of %q was not decided in %v", key, verdictIn)
		}
	}
}

// operations translates a history. The oracle knows the outcome of commands without an answer: applied ones
// may take effect until the end, others never.
func (h *history) operations(key string) (all []porcupine.Operation) {
	clients := make(map[string]int)
	for _, o := range h.objects[key] {
		if o.call.client != 0 {
			fate, applied := h.oracle.fates[o.call]
			unmet := fate.Txn.Unmet() != nil
			if !applied || fate.Err != nil || unmet && o.input.kind != swap {
				continue // without effect in any state
			}
			o.output.ok, o.output.token = !unmet, fate.Lock.Token
			if o.input.kind == try {
				o.output.ok = fate.Lock.Granted
			}
		}
		if _, ok := clients[o.client]; !ok {
			clients[o.client] = len(clients)
		}
		until := int64(o.to)
		if !o.known {
			until = math.MaxInt64
		}
		if o.open {
			o.output.value = "?"
		}
		all = append(all, porcupine.Operation{
			ClientId: clients[o.client], Input: o.input, Output: o.output, Call: int64(o.from), Return: until,
		})
	}
	return all
}

func (h *history) describe(key string) string {
	var b strings.Builder
	for _, o := range h.objects[key] {
		fmt.Fprintf(&b, "  %v..%v %s %+v %+v known %v", o.from, o.to, o.client, o.input, o.output, o.known)
		if fate, ok := h.oracle.fates[o.call]; ok {
			fmt.Fprintf(&b, " %+v", fate)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// registers is the model of a key.
func registers() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, in, out any) (bool, any) {
			i, o := in.(input), out.(output)
			switch i.kind {
			case read:
				return state == any(o.value), state
			case swap:
				if !o.ok {
					return state != any(i.old), state
				}
				return state == any(i.old), i.value
			default:
				return true, i.value
			}
		},
	}
}

// lock is the holder of a lock, 0 for none, and the greatest granted token.
type lock struct{ holder, last coord.Token }

// locks is the model of an exclusive lock without a queue.
func locks() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return lock{} },
		Step: func(state, in, out any) (bool, any) {
			s, i, o := state.(lock), in.(input), out.(output)
			switch {
			case i.kind == try && o.ok:
				return s.holder == 0 && o.token > s.last, lock{o.token, o.token}
			case i.kind == try:
				return s.holder != 0, s
			default:
				return s.holder == i.token, lock{0, s.last}
			}
		},
	}
}

// guarded is a resource's value with the greatest token that wrote it.
type guarded struct {
	token coord.Token
	value string
}

// resources is the model of a resource that checks tokens.
func resources() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return guarded{} },
		Step: func(state, in, out any) (bool, any) {
			s, i, o := state.(guarded), in.(input), out.(output)
			switch {
			case i.kind == read:
				return s.value == o.value, s
			case o.value == "?" && i.token < s.token:
				return true, s
			case o.ok || o.value == "?":
				return i.token >= s.token, guarded{i.token, i.value}
			default:
				return i.token < s.token, s
			}
		},
	}
}
