package publisher

import (
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// batch collects entries up to the bounds of one command.
type batch struct {
	*coord.RegisterBatch
	size int // bytes
	most int // entries
}

func (p *Publisher) newBatch() *batch {
	p.removed = p.removed[:0]
	p.state.Requests++
	return &batch{RegisterBatch: &coord.RegisterBatch{Lease: p.lease.id, Generation: p.generation()}, most: p.most}
}

// add adds a key. It reports false without room.
func (b *batch) add(key string, it *item) bool {
	size := len(key) + len(it.value)
	if len(b.Puts)+len(b.Deletes) == b.most || b.size+size > coord.MaxBatchBytes {
		return false
	}
	b.size += size
	if it.value == nil {
		b.Deletes = append(b.Deletes, key)
	} else {
		b.Puts = append(b.Puts, coord.Entry{Key: key, Value: it.value, Adopt: it.adopt, Since: it.since, Principal: it.principal})
	}
	return true
}

// changeBatch returns a batch of changed entries.
func (p *Publisher) changeBatch() *coord.RegisterBatch {
	b := p.newBatch()
	p.entries.dirty.Scan(func(key string) bool {
		it, ok := p.entries.items.Get(key)
		return !ok || b.add(key, it)
	})
	p.markSent(b)
	return b.RegisterBatch
}

// spanBatch returns a batch that replaces the next span of a resync: the group
// removes all other entries of this peer there.
func (p *Publisher) spanBatch() *coord.RegisterBatch {
	b := p.newBatch()
	b.Replace = &coord.Span{From: *p.sweep, To: coord.Under(coord.DirectoryPrefix).To}
	p.entries.items.Ascend(*p.sweep, func(key string, it *item) bool {
		if it.reason == rejected || it.value == nil {
			return true
		}
		if !b.add(key, it) {
			b.Replace.To = key
			return false
		}
		return true
	})
	p.entries.items.Ascend(*p.sweep, func(key string, it *item) bool {
		if !b.Replace.Contains(key) {
			return false
		}
		if it.value == nil {
			p.removed = append(p.removed, key)
		}
		return true
	})
	p.markSent(b)
	return b.RegisterBatch
}

func (p *Publisher) markSent(b *batch) {
	p.removed = append(p.removed, b.Deletes...)
	for _, e := range b.Puts {
		p.entries.dirty.Delete(e.Key)
		if it, ok := p.entries.items.Get(e.Key); ok {
			it.sent, it.repeated = true, false
		}
	}
	for _, key := range p.removed {
		p.entries.dirty.Delete(key)
	}
}

// done processes the result of a batch.
func (p *Publisher) done(e PublishDone) {
	b := p.inFlight.(Send).Batch
	p.inFlight = nil
	kind, field := fault.KindOf(e.Err), fault.FieldOf(e.Err)
	switch {
	case e.Err == nil:
		p.accept(b, &e)
		return
	case (kind == fault.NotFound || kind == fault.Forbidden) && field == "lease":
		p.lease.chosen = p.lease.chosen || kind == fault.Forbidden // another owner has the id
		p.loseLease()
		p.failed(e.Err)
		return
	case kind == fault.Conflict && field == "generation":
		p.supersede(e.Err)
		return
	case kind == fault.Conflict && field == "lease":
		p.resync()
		p.failed(e.Err)
		return
	}
	p.putBack(b)
	if key, ok := culprit(b, field); ok && (kind == fault.Invalid || kind == fault.TooLarge) {
		p.reject(key, e.Err)
		return
	}
	if (kind == fault.LimitReached || kind == fault.NoSpace) && len(b.Puts) > 0 {
		p.narrow(b, e.Err)
		return
	}
	if kind == fault.Unavailable || kind == fault.Timeout || kind == fault.Canceled {
		p.counter++ // a late commit of this batch must not undo later ones
	}
	p.failed(e.Err)
}

// accept notes a committed batch.
func (p *Publisher) accept(b *coord.RegisterBatch, e *PublishDone) {
	p.succeeded()
	p.most = min(2*p.most, coord.MaxBatch)
	p.accepted, p.state.Superseded, p.step.Settled = b.Generation, false, true
	if !p.lease.proven { // the lease of an earlier process of this peer
		p.lease.proven, p.lease.renew = true, p.now
	}
	p.acceptPuts(b, e)
	for _, key := range p.removed {
		if it, ok := p.entries.items.Get(key); ok {
			p.entries.acknowledge(key, it, nil)
			if it.value == nil {
				p.entries.drop(key)
			}
		}
	}
	if b.Replace != nil {
		p.sweep = nil
		if b.Replace.To != coord.Under(coord.DirectoryPrefix).To {
			p.sweep = &b.Replace.To
		}
	}
}

func (p *Publisher) acceptPuts(b *coord.RegisterBatch, e *PublishDone) {
	r := &e.Result
	theirs := r.Foreign // in the order of Puts
	for n, put := range b.Puts {
		it, ok := p.entries.items.Get(put.Key)
		if !ok {
			continue
		}
		if len(theirs) > 0 && theirs[0] == put.Key {
			theirs = theirs[1:]
			if it.value != nil && !it.repeated {
				it.adopt = false // the application registered elsewhere since
				p.entries.set(put.Key, it, foreign)
				if slices.Contains(e.Refused, put.Key) {
					p.step.Refused = append(p.step.Refused, put.Key)
				} else {
					p.step.Lost = append(p.step.Lost, put.Key)
				}
			}
			continue
		}
		p.entries.acknowledge(put.Key, it, put.Value)
		it.committed, it.since = r.Revision, r.SinceOf(n, put)
		it.adopt = it.repeated
	}
}

// putBack queues a failed batch again. A sweep repeats its span by itself.
func (p *Publisher) putBack(b *coord.RegisterBatch) {
	if b.Replace != nil {
		return
	}
	for _, e := range b.Puts {
		p.entries.touch(e.Key)
	}
	for _, key := range b.Deletes {
		p.entries.touch(key)
	}
	p.entries.due = p.now
}

// narrow halves the batch size to find the entries without room. Other
// entries continue, and deletions make room.
func (p *Publisher) narrow(b *coord.RegisterBatch, err error) {
	if len(b.Puts)+len(b.Deletes) == 1 {
		p.reject(b.Puts[0].Key, err)
		return
	}
	p.succeeded()
	p.most = max(1, (len(b.Puts)+len(b.Deletes))/2)
}

// reject leaves out an entry the group does not accept.
func (p *Publisher) reject(key string, err error) {
	p.succeeded()
	if it, ok := p.entries.items.Get(key); ok {
		p.entries.set(key, it, rejected)
	}
	p.step.Rejected = map[string]error{key: err}
}

// culprit returns the entry named by an error.
func culprit(b *coord.RegisterBatch, field string) (string, bool) {
	number, _, ok := strings.Cut(strings.TrimPrefix(field, "puts["), "]")
	i, err := strconv.Atoi(number)
	if !ok || err != nil || i < 0 || i >= len(b.Puts) {
		return "", false
	}
	return b.Puts[i].Key, true
}
