package simulation

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

// verdictIn is the real time for the check of one object. A check of 15 virtual minutes takes 3 ms, so that one
// without a verdict hides something.
const verdictIn = 20 * time.Second

// operation is one client's action and observation.
type operation struct {
	history.Op
	call  call // the oracle knows its outcome
	known bool // the client knows it too
}

// histories collect operations by object.
type histories struct {
	oracle  *oracle
	objects map[string][]operation
	total   int
}

func newHistories(o *oracle) *histories {
	return &histories{oracle: o, objects: make(map[string][]operation)}
}

func (h *histories) add(o operation) {
	h.objects[o.Object] = append(h.objects[o.Object], o)
	h.total++
}

// ended records the end of a lease for its locks, at the first application by a member.
func (h *histories) ended(id coord.LeaseID, claims []*coord.KeyValue) {
	for _, kv := range claims {
		if claim, ok := kv.Claim(); ok && kv.Lease == id && strings.HasPrefix(claim.Lock, "try/") {
			now := h.oracle.now
			h.add(operation{Op: history.Op{Kind: history.Unlock, Object: claim.Lock, Token: int64(kv.Token()), Call: now, Return: now}, known: true})
		}
	}
}

// check asks whether some order explains the history of each object.
func (h *histories) check(w *scheduler) {
	for _, key := range slices.Sorted(maps.Keys(h.objects)) {
		if w.fail != nil {
			return
		}
		rule, model := "H1", history.Register()
		switch {
		case strings.HasPrefix(key, "try/"):
			rule, model = "H2", history.TryLock()
		case strings.HasPrefix(key, "resource/"):
			rule, model = "H3", history.Resource()
		}
		if why := history.Explain(h.operations(key), model, verdictIn); why != "" {
			w.breach(rule, "%q: %s", key, why)
		}
	}
}

// operations translates a history. The oracle knows the outcome of commands without an answer: applied ones
// may take effect until the end, others never.
func (h *histories) operations(key string) (all []history.Op) {
	for _, o := range h.objects[key] {
		if o.call.client != 0 {
			fate, applied := h.oracle.fates[o.call]
			unmet := fate.Txn.Unmet() != nil
			if !applied || fate.Err != nil || unmet && o.Kind != history.Swap {
				continue // without effect in any state
			}
			if o.Outcome = history.OK; unmet || o.Kind == history.Try && !fate.Lock.Granted {
				o.Outcome = history.Refused
			}
			if o.Kind == history.Try {
				o.Token = int64(fate.Lock.Token)
			}
		}
		if !o.known {
			o.Return = history.Forever
		}
		all = append(all, o.Op)
	}
	return all
}
