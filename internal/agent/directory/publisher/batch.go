package publisher

import (
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// batch collects entries up to the bounds of one command.
type batch struct {
	*apiv1.PublishInstancesRequest
	size int // bytes
	most int // entries
}

func (p *Publisher) newBatch() *batch {
	p.removed = p.removed[:0]
	return &batch{PublishInstancesRequest: &apiv1.PublishInstancesRequest{LeaseId: int64(p.lease.id), Generation: p.generation()}, most: p.most}
}

// add adds a key. It reports false without room.
func (b *batch) add(key string, it *item) bool {
	size := len(key) + len(it.value)
	if len(b.Puts)+len(b.Deletes) == b.most || b.size+size > directory.MaxBatchBytes {
		return false
	}
	b.size += size
	if it.value == nil {
		b.Deletes = append(b.Deletes, []byte(key))
	} else {
		b.Puts = append(b.Puts, &apiv1.DirectoryEntry{Key: []byte(key), Value: it.value, Adopt: it.adopt, Since: int64(it.since), Principal: it.principal})
	}
	return true
}

// changeBatch returns a batch of changed entries.
func (p *Publisher) changeBatch() *apiv1.PublishInstancesRequest {
	b := p.newBatch()
	p.entries.dirty.Scan(func(key string) bool {
		it, ok := p.entries.items.Get(key)
		return !ok || b.add(key, it)
	})
	p.markSent(b)
	return b.PublishInstancesRequest
}

// spanBatch returns a batch that replaces the next span of a resync: the group
// removes all other entries of this peer there.
func (p *Publisher) spanBatch() *apiv1.PublishInstancesRequest {
	b := p.newBatch()
	span := coord.Span{From: *p.sweep, To: coord.Under(directory.Prefix).To}
	p.entries.items.Ascend(*p.sweep, func(key string, it *item) bool {
		if it.reason == rejected || it.reason == crowded || it.value == nil {
			return true
		}
		if !b.add(key, it) {
			span.To = key
			return false
		}
		return true
	})
	p.entries.items.Ascend(*p.sweep, func(key string, it *item) bool {
		if !span.Contains(key) {
			return false
		}
		if it.value == nil {
			p.removed = append(p.removed, key)
		}
		return true
	})
	b.Replace = true
	b.Key, b.RangeEnd = span.Bounds()
	p.markSent(b)
	return b.PublishInstancesRequest
}

func (p *Publisher) markSent(b *batch) {
	for _, key := range b.Deletes {
		p.removed = append(p.removed, string(key))
	}
	for _, e := range b.Puts {
		key := string(e.GetKey())
		p.entries.dirty.Delete(key)
		if it, ok := p.entries.items.Get(key); ok {
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
		p.reject(key, rejected, e.Err)
		return
	}
	if (kind == fault.LimitReached || kind == fault.PoolExhausted) && len(b.Puts) > 0 {
		p.narrow(b, e.Err)
		return
	}
	if kind == fault.Unavailable || kind == fault.Timeout || kind == fault.Canceled {
		p.counter++ // a late commit of this batch must not undo later ones
	}
	p.failed(e.Err)
}

// accept notes a committed batch.
func (p *Publisher) accept(b *apiv1.PublishInstancesRequest, e *PublishDone) {
	p.succeeded()
	p.most = min(2*p.most, directory.MaxBatch)
	p.accepted, p.state.Superseded, p.step.Settled = b.GetGeneration(), false, true
	if !p.lease.proven { // the lease of an earlier process of this peer
		p.lease.proven, p.lease.renew = true, p.now
	}
	p.acceptPuts(b, e)
	for _, key := range p.removed {
		if it, ok := p.entries.items.Get(key); ok {
			if it.known != nil {
				p.gone = coord.Revision(e.Answer.GetHeader().GetRevision())
			}
			p.entries.acknowledge(key, it, nil)
			if it.value == nil {
				p.entries.drop(key)
			}
		}
	}
	if b.GetReplace() {
		p.sweep = nil
		if end := string(b.GetRangeEnd()); end != coord.Under(directory.Prefix).To {
			p.sweep = &end
		}
	}
}

func (p *Publisher) acceptPuts(b *apiv1.PublishInstancesRequest, e *PublishDone) {
	theirs := e.Answer.GetForeign() // in the order of Puts
	for n, put := range b.GetPuts() {
		key := string(put.GetKey())
		it, ok := p.entries.items.Get(key)
		if !ok {
			continue
		}
		if len(theirs) > 0 && string(theirs[0]) == key {
			theirs = theirs[1:]
			if it.value != nil && !it.repeated {
				it.adopt = false // the application registered elsewhere since
				p.entries.set(key, it, foreign)
				if slices.Contains(e.Refused, key) {
					p.step.Refused = append(p.step.Refused, key)
				} else {
					p.step.Lost = append(p.step.Lost, key)
				}
			}
			continue
		}
		if it.known == nil && p.entries.counts[crowded] > 0 {
			p.entries.probe, p.entries.again = min(2*max(p.entries.probe, 1), directory.MaxBatch), p.now
		}
		p.entries.acknowledge(key, it, put.GetValue())
		it.committed = coord.Revision(e.Answer.GetHeader().GetRevision())
		if since := e.Answer.GetSince(); n < len(since) {
			it.since = coord.Revision(since[n])
		}
		it.adopt = it.repeated
	}
}

// putBack queues a failed batch again. A sweep repeats its span by itself.
func (p *Publisher) putBack(b *apiv1.PublishInstancesRequest) {
	if b.GetReplace() {
		return
	}
	for _, e := range b.Puts {
		p.entries.dirty.Insert(string(e.GetKey()))
	}
	for _, key := range b.Deletes {
		p.entries.dirty.Insert(string(key))
	}
}

// narrow halves the batch size to find the entries without room. Other
// entries continue, and deletions make room.
func (p *Publisher) narrow(b *apiv1.PublishInstancesRequest, err error) {
	if len(b.Puts)+len(b.Deletes) == 1 {
		p.entries.probe = 1
		p.reject(string(b.GetPuts()[0].GetKey()), crowded, err)
		return
	}
	p.succeeded()
	p.most = max(1, (len(b.Puts)+len(b.Deletes))/2)
}

// reject leaves out an entry the group does not accept.
func (p *Publisher) reject(key string, why reason, err error) {
	p.succeeded()
	if it, ok := p.entries.items.Get(key); ok {
		p.entries.set(key, it, why)
	}
	p.step.Rejected = map[string]error{key: err}
}

// culprit returns the entry named by an error.
func culprit(b *apiv1.PublishInstancesRequest, field string) (string, bool) {
	number, _, ok := strings.Cut(strings.TrimPrefix(field, "puts["), "]")
	i, err := strconv.Atoi(number)
	if !ok || err != nil || i < 0 || i >= len(b.Puts) {
		return "", false
	}
	return string(b.GetPuts()[i].GetKey()), true
}
