package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// world is a small market: two granters share a durable state with a revision, and three consumers want one of two
// units each.
type world struct {
	now      time.Duration
	revision int
	durable  *pb.Ledger
	granters [2]*Ledger // what each read last, or wrote
	read     [2]int
	tokens   [3]uint64        // of each consumer's grant
	until    [3]time.Duration // each consumer believes in its grant until then
	asked    int
}

// rules are what a mutant breaks.
type rules struct {
	blind     bool // the durable state is replaced whatever its revision
	hasty     bool // a new process takes the time of a grant for over
	forgetful bool // a release keeps the belief of its consumer
}

// key tells apart the worlds with different futures.
func (w *world) key() string {
	var b strings.Builder
	rank := map[uint64]int{}
	for i, e := range w.durable.Entries {
		rank[e.Token] = i + 1
	}
	for i, l := range w.granters {
		fmt.Fprint(&b, "|", w.read[i] == w.revision)
		for _, e := range l.Entries() {
			fmt.Fprint(&b, " ", rank[e.Token], e.ConsumerId, e.State, e.Changes, max(l.ends[e.Token]-w.now, -time.Second))
		}
	}
	for _, e := range w.durable.Entries {
		fmt.Fprint(&b, "/", e.ConsumerId, e.State, e.Changes)
	}
	for i := range w.tokens {
		fmt.Fprint(&b, ";", rank[w.tokens[i]], max(w.until[i]-w.now, 0))
	}
	return b.String()
}

// commit is the compare-and-swap of a granter.
func (w *world) commit(g int, to *Ledger, r rules) bool {
	if w.read[g] != w.revision && !r.blind {
		w.granters[g], w.read[g] = Load(w.durable, w.granters[g], w.now), w.revision
		return false
	}
	w.revision++
	w.durable, w.granters[g], w.read[g] = to.Clone().State(), to, w.revision
	return true
}

// next returns the worlds after each possible event.
func (w world) next(r rules) (all []world) {
	const step = 10 * time.Second
	offer := terms(2)
	offer.PerOne = 1
	later := w
	later.now += step
	all = append(all, later)
	for g := range w.granters {
		again := w
		again.granters[g], again.read[g] = Load(w.durable, nil, w.now), w.revision
		if r.hasty {
			for token := range again.granters[g].ends {
				again.granters[g].ends[token] = w.now - step
			}
		}
		expired := w
		to := w.granters[g].Clone()
		if to.Expire(w.now) {
			expired.commit(g, to, r)
			all = append(all, expired)
		}
		all = append(all, again)
		for c := range w.tokens {
			id := fmt.Sprint(c)
			if w.until[c] <= w.now {
				taken := w
				taken.asked++
				to := w.granters[g].Clone()
				to.Expire(w.now)
				req := &api.ReserveRequest{Key: offer.Key, TtlMs: uint64((2 * step).Milliseconds()), RequestId: fmt.Sprint(taken.asked)}
				e, err := to.Reserve(Consumer{ID: id}, req, offer, w.now, epoch())
				done := err == nil && taken.commit(g, to, r)
				all = append(all, taken) // the answer is lost
				if done {
					taken.tokens[c], taken.until[c] = e.Token, w.now+2*step
					all = append(all, taken)
				}
				continue
			}
			given := w
			if !r.forgetful {
				given.until[c] = 0
			}
			to := w.granters[g].Clone()
			if _, err := to.Release(id, w.tokens[c], w.now); err == nil {
				given.commit(g, to, r)
			}
			extended := w
			to = w.granters[g].Clone()
			if _, err := to.Extend(id, &api.ExtendRequest{Token: w.tokens[c]}, offer, w.now); err == nil && extended.commit(g, to, r) {
				all = append(all, extended)
				extended.until[c] = w.now + 2*step
				all = append(all, extended)
			}
			all = append(all, given)
		}
	}
	return all
}

// explore visits each world up to a number of events, and returns the number of worlds and the first one in which
// consumers believe in more units than there are.
func explore(r rules, events int) (worlds int, oversold *world) {
	first := world{durable: &pb.Ledger{}, granters: [2]*Ledger{New(), New()}}
	seen := map[string]bool{}
	front := []world{first}
	for range events {
		var next []world
		for _, w := range front {
			for _, n := range w.next(r) {
				believed := 0
				for _, until := range n.until {
					if until > n.now {
						believed++
					}
				}
				if believed > 2 {
					return len(seen), &n
				}
				if k := n.key(); !seen[k] {
					seen[k] = true
					next = append(next, n)
				}
			}
		}
		front = next
	}
	return len(seen), nil
}

// TestEveryWorld: whatever two granters and three consumers do, restarts, ends and lost answers included, nothing
// is sold twice. Each mutant sells something twice, so the search would find it.
func TestEveryWorld(t *testing.T) {
	worlds, oversold := explore(rules{}, 6) // 8 events are 850,000 worlds and half a minute
	require.Nil(t, oversold)
	t.Logf("%d worlds, none oversold", worlds)
	require.Greater(t, worlds, 10_000)
	for name, mutant := range map[string]rules{"blind": {blind: true}, "hasty": {hasty: true}, "forgetful": {forgetful: true}} {
		_, oversold := explore(mutant, 8)
		require.NotNil(t, oversold, name)
	}
}
