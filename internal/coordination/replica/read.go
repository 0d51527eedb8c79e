package replica

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/lessor"
	"github.com/blackhole/blackhole/internal/coordination/machine"
)

// maxRounds bounds the concurrent rounds: requests that arrive during a round need not wait for its end, but
// simultaneous requests share one.
const maxRounds = 4

// reads holds the requests that wait for a round of heartbeats.
type reads struct {
	next   uint64 // number of the next round; random at the start, see New
	ticks  uint64
	staged batch
	rounds map[uint64]*round // begun, not confirmed
	done   []*round          // confirmed, their index not applied
	held   []keepalive       // confirmed, but the end of a lease is being agreed on
	retry  bool              // the end of a held lease may be decided
}

// batch holds the requests of a round.
type batch struct {
	reads []uint64 // ids
	keeps []keepalive
}

type round struct {
	batch
	begun uint64 // tick
	index uint64 // confirmed
}

type keepalive struct {
	id     uint64
	owner  string
	leases []coord.LeaseID
}

func (r *reads) waiting() int {
	n := len(r.staged.reads) + len(r.staged.keeps) + len(r.held)
	for _, round := range r.rounds {
		n += len(round.reads) + len(round.keeps)
	}
	for _, round := range r.done {
		n += len(round.reads) + len(round.keeps)
	}
	return n
}

// Read requests an answer once the state contains all earlier answers; see Propose for the id. It waits for a
// leader.
func (r *Replica) Read(id uint64) {
	if err := r.overloaded(); err != nil {
		r.refuse(id, err)
		return
	}
	r.reads.staged.reads = append(r.reads.staged.reads, id)
}

// KeepAlive renews an owner's leases at the leader. The answer holds one renewal for each lease, in order; see
// Propose for the id.
func (r *Replica) KeepAlive(id uint64, owner string, leases []coord.LeaseID) {
	err := r.overloaded()
	if !r.role.leads {
		err = r.notLeader(false)
	}
	if err != nil {
		r.refuse(id, err)
		return
	}
	r.reads.staged.keeps = append(r.reads.staged.keeps, keepalive{id, owner, leases})
}

// canBegin reports whether the leader could confirm a round now.
func (q *reads) canBegin(r *Replica) bool {
	s := &q.staged
	return len(s.reads)+len(s.keeps) > 0 && len(q.rounds) < maxRounds &&
		(r.role.promoted || !r.role.leads && r.role.leader != 0)
}

func (q *reads) beginRound(r *Replica) {
	if !q.canBegin(r) {
		return
	}
	q.next++
	q.rounds[q.next] = &round{batch: q.staged, begun: q.ticks}
	q.staged = batch{}
	r.node.ReadIndex(binary.BigEndian.AppendUint64(nil, q.next))
}

// tick gives up rounds older than patience, in ticks.
func (r *reads) tick(patience uint64) {
	r.ticks++
	r.again(func(round *round) bool { return r.ticks-round.begun > patience })
}

// again stages the requests of lost rounds for the next round.
func (r *reads) again(lost func(*round) bool) {
	for _, number := range sortedKeys(r.rounds) {
		if round := r.rounds[number]; lost(round) {
			delete(r.rounds, number)
			r.staged.reads = append(r.staged.reads, round.reads...)
			r.staged.keeps = append(r.staged.keeps, round.keeps...)
		}
	}
}

func (r *reads) confirm(states []raft.ReadState) {
	for _, s := range states {
		if len(s.RequestCtx) != 8 {
			continue
		}
		number := binary.BigEndian.Uint64(s.RequestCtx)
		if confirmed, ok := r.rounds[number]; ok {
			delete(r.rounds, number)
			confirmed.index = s.Index
			r.done = append(r.done, confirmed)
		}
	}
}

// dropKeeps ends all keepalives.
func (r *reads) dropKeeps(drop func(id uint64)) {
	var ids []uint64
	take := func(keeps *[]keepalive) {
		for _, k := range *keeps {
			ids = append(ids, k.id)
		}
		*keeps = nil
	}
	take(&r.held)
	take(&r.staged.keeps)
	for _, round := range r.rounds {
		take(&round.keeps)
	}
	for _, round := range r.done {
		take(&round.keeps)
	}
	slices.Sort(ids)
	for _, id := range ids {
		drop(id)
	}
}

// finishRounds answers the requests of rounds with an applied index.
func (q *reads) finishRounds(r *Replica) {
	waiting := q.done[:0]
	for _, round := range q.done {
		if round.index > r.applied.index {
			waiting = append(waiting, round)
			continue
		}
		for _, id := range round.reads {
			r.answer(Answer{ID: id})
		}
		for _, k := range round.keeps {
			r.reads.renew(r, k)
		}
	}
	clear(q.done[len(waiting):])
	q.done = waiting
	if q.retry {
		q.retry = false
		held := q.held
		q.held = nil
		for _, k := range held {
			r.reads.renew(r, k)
		}
	}
}

// renew answers a confirmed keepalive, or holds it while the group decides on the end of one of its leases.
// Renewing some leases twice is harmless.
func (q *reads) renew(r *Replica, k keepalive) {
	renewals := make([]machine.Renewal, len(k.leases))
	for i, id := range k.leases {
		renewals[i].ID = id
		if l, ok := r.machine.Lease(id); !ok || !principals.MayUse(l.Owner, k.owner) {
			continue
		}
		ttl, fate := r.lessor.Renew(r.now, id)
		if fate == lessor.Expiring {
			q.held = append(q.held, k)
			return
		}
		renewals[i].TTL, renewals[i].Published = ttl.Milliseconds(), r.machine.Publication(id)
	}
	r.answer(Answer{ID: k.id, Renewals: renewals})
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
