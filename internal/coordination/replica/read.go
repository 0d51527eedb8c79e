package replica

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"

	"github.com/blackhole/blackhole/internal/coordination/lessor"
	"github.com/blackhole/blackhole/pkg/coord"
)

// maxRounds may be under way at a time, so that who comes during one need not wait for its end
// first; and no more, so that all who come together share.
const maxRounds = 4

// reads are those who wait for a round of heartbeats.
type reads struct {
	next   uint64 // number of the next round; random at the start, see New
	ticks  uint64
	staged batch
	rounds map[uint64]*round // begun and not confirmed
	done   []*round          // confirmed, their index not applied
	held   []keepalive       // confirmed, with a lease whose end is being agreed on
	retry  bool              // held ones may know their fate
}

// batch shares a round.
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

// Read proposals to be answered when the state has all that was answered before; see Propose for
// the id. While no leader is known it waits.
func (r *Replica) Read(id uint64) {
	if err := r.overloaded(); err != nil {
		r.refuse(id, err)
		return
	}
	r.reads.staged.reads = append(r.reads.staged.reads, id)
}

// KeepAlive renews an owner's leases, and is answered with a renewal for each in order; see Propose for
// the id. Only the leader can.
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

// canBegin says whether a round would be confirmed by a leader who knows enough.
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

// tick takes rounds for lost that are older than patience, in ticks.
func (r *reads) tick(patience uint64) {
	r.ticks++
	r.again(func(round *round) bool { return r.ticks-round.begun > patience })
}

// again lets those who wait for a lost round take part in the next one.
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

// finishRounds answers those whose index is applied.
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

// renew answers a keepalive that a round has confirmed, or holds it while the end of one of
// its leases is being agreed on. To renew some of them twice does no harm.
func (q *reads) renew(r *Replica, k keepalive) {
	renewals := make([]coord.Renewal, len(k.leases))
	for i, id := range k.leases {
		renewals[i].ID = id
		if l, ok := r.machine.Lease(id); !ok || l.Owner != k.owner {
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
