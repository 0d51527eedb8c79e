package publisher

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// change takes note of what runs here and what does no more.
func (p *Publisher) change(e Local) {
	_, pulling := p.busy.(Pull)
	for _, put := range e.Puts {
		if p.put(put); pulling {
			p.newer.Insert(put.Key)
		}
	}
	for _, key := range e.Deletes {
		if pulling {
			p.newer.Insert(key)
		}
		it, ok := p.items.Get(key)
		if !ok || it.value == nil {
			continue
		}
		it.value, it.adopt, it.since = nil, false, 0
		if p.settle(key, it, fine); it.sent {
			p.touch(key)
		} else {
			p.drop(key)
		}
	}
}

// put takes note of an entry, which is a registration if its application says so, and otherwise as it is now of one
// that there was. One that is another owner's stays so, unless its application is here now.
func (p *Publisher) put(e coord.Entry) {
	it, ok := p.items.Get(e.Key)
	if !ok {
		it = &item{}
		p.items.Set(e.Key, it)
	}
	same := it.value != nil && bytes.Equal(it.value, e.Value)
	it.value, it.adopt, it.said = e.Value, it.adopt || e.Adopt, it.said || e.Adopt
	if it.fate == refused && !same || it.fate == foreign && e.Adopt {
		p.settle(e.Key, it, fine)
	}
	if it.fate == fine && (!same || e.Adopt) {
		p.touch(e.Key)
	}
}

// drop forgets a key.
func (p *Publisher) drop(key string) {
	p.items.Delete(key)
	p.dirty.Delete(key)
}

// touch has a key sent with the next changes.
func (p *Publisher) touch(key string) {
	if p.dirty.Len() == 0 {
		p.due = p.now + max(p.config.Gather, 0)
	}
	p.dirty.Insert(key)
}

// settle gives an item its fate.
func (p *Publisher) settle(key string, it *item, to fate) {
	p.fates[it.fate]--
	p.fates[to]++
	if it.fate = to; to == fine {
		return
	}
	p.dirty.Delete(key)
	p.know(key, it, nil)
	if to == foreign && p.fates[foreign] == 1 {
		p.again = p.now + p.config.Reconsider
	}
}

// know takes note of what the group has under a key.
func (p *Publisher) know(key string, it *item, value []byte) {
	if it.known != nil {
		p.have.Remove(key, it.known)
	}
	if it.known = value; value != nil {
		p.have.Add(key, value)
	}
}

// unknown takes note that nothing is known of what the group has.
func (p *Publisher) unknown() {
	p.have = coord.Digest{}
	p.items.Scan(func(_ string, it *item) bool {
		it.known, it.sent = nil, false
		return true
	})
}

// pulled begins to register everything. What is another owner's is tried again. What has changed since all
// was asked for is newer than the answer.
func (p *Publisher) pulled(e Pulled) {
	before, newer := p.items, p.newer
	p.busy, p.pull, p.newer = nil, false, keySet{}
	p.items, p.dirty, p.have, p.fates = itemMap{}, keySet{}, coord.Digest{}, [fates]int{}
	for _, put := range e.Entries {
		was, _ := before.Get(put.Key)
		if !newer.Contains(put.Key) {
			p.begin(put, was)
		}
	}
	newer.Scan(func(key string) bool {
		if was, ok := before.Get(key); ok && was.value != nil {
			p.begin(coord.Entry{Key: key, Value: was.value}, was)
		}
		return true
	})
	from := coord.DirectoryPrefix
	p.sweep = &from
}

// begin makes the item of an entry anew, of which nothing is sent. Its last one, if any, tells whether it is to be
// taken over, and whether the group has refused it.
func (p *Publisher) begin(put coord.Entry, was *item) {
	it := &item{value: put.Value, adopt: put.Adopt}
	if was != nil {
		it.adopt, it.since, it.at = it.adopt || was.adopt, was.since, was.at
		if was.fate == refused && bytes.Equal(was.value, put.Value) {
			it.fate = refused
		}
	}
	p.items.Set(put.Key, it)
	p.fates[it.fate]++
}

// batch gathers entries up to the bounds of one command.
type batch struct {
	*coord.RegisterBatch
	size int
	most int // entries
}

func (p *Publisher) batch() *batch {
	p.gone = p.gone[:0]
	p.state.Batches++
	return &batch{RegisterBatch: &coord.RegisterBatch{Lease: p.lease, Generation: p.generation()}, most: p.most}
}

// add puts or deletes a key; false when there is no room.
func (b *batch) add(key string, it *item) bool {
	size := len(key) + len(it.value)
	if len(b.Puts)+len(b.Deletes) == b.most || b.size+size > coord.MaxBatchBytes {
		return false
	}
	b.size += size
	if it.value == nil {
		b.Deletes = append(b.Deletes, key)
	} else {
		b.Puts = append(b.Puts, coord.Entry{Key: key, Value: it.value, Adopt: it.adopt, Since: it.since})
	}
	return true
}

// changes makes a batch of what has changed.
func (p *Publisher) changes() *coord.RegisterBatch {
	b := p.batch()
	p.dirty.Scan(func(key string) bool {
		it, ok := p.items.Get(key)
		return !ok || b.add(key, it)
	})
	p.take(b)
	return b.RegisterBatch
}

// span makes a batch of all from where the sweep is, and says so, so that whatever else the group has there goes.
func (p *Publisher) span() *coord.RegisterBatch {
	b := p.batch()
	b.Replace = &coord.Span{From: *p.sweep, To: coord.Under(coord.DirectoryPrefix).To}
	p.items.Ascend(*p.sweep, func(key string, it *item) bool {
		if it.fate == refused || it.value == nil {
			return true
		}
		if !b.add(key, it) {
			b.Replace.To = key
			return false
		}
		return true
	})
	p.items.Ascend(*p.sweep, func(key string, it *item) bool {
		if !b.Replace.Contains(key) {
			return false
		}
		if it.value == nil {
			p.gone = append(p.gone, key)
		}
		return true
	})
	p.take(b)
	return b.RegisterBatch
}

// take counts what is in a batch as sent.
func (p *Publisher) take(b *batch) {
	p.gone = append(p.gone, b.Deletes...)
	for _, e := range b.Puts {
		p.dirty.Delete(e.Key)
		if it, ok := p.items.Get(e.Key); ok {
			it.sent, it.said = true, false
		}
	}
	for _, key := range p.gone {
		p.dirty.Delete(key)
	}
}

// sent takes note of what became of a batch.
func (p *Publisher) sent(e Sent) {
	b := p.busy.(Send).Batch
	p.busy = nil
	kind, field := fault.KindOf(e.Err), fault.FieldOf(e.Err)
	switch {
	case e.Err == nil:
		p.accept(b, &e.Result)
		return
	case (kind == fault.NotFound || kind == fault.Forbidden) && field == "lease":
		p.chosen = p.chosen || kind == fault.Forbidden // somebody else has the id
		p.lose()
		p.failed(e.Err)
		return
	case kind == fault.Conflict && field == "generation":
		p.supersede(e.Err)
		return
	case kind == fault.Conflict && field == "lease":
		p.anew()
		p.failed(e.Err)
		return
	}
	p.putBack(b)
	if key, ok := culprit(b, field); ok && (kind == fault.Invalid || kind == fault.TooLarge) {
		p.refuse(key, e.Err)
		return
	}
	if kind == fault.LimitReached && len(b.Puts) > 0 {
		p.narrow(b, e.Err)
		return
	}
	if kind == fault.Unavailable || kind == fault.Timeout || kind == fault.Canceled {
		p.counter++ // it may yet arrive, and must not then undo what comes after
	}
	p.failed(e.Err)
}

// accept takes note that the group has a batch.
func (p *Publisher) accept(b *coord.RegisterBatch, r *coord.Result) {
	p.done()
	p.most = min(2*p.most, coord.MaxBatch)
	p.accepted, p.state.Superseded, p.step.Settled = b.Generation, false, true
	if !p.proven { // an earlier process had the lease
		p.proven, p.renew = true, p.now
	}
	theirs := r.Foreign
	for n, e := range b.Puts {
		it, ok := p.items.Get(e.Key)
		if !ok {
			continue
		}
		if len(theirs) > 0 && theirs[0] == e.Key {
			theirs = theirs[1:]
			if it.value != nil && !it.said {
				it.adopt = false // its application spoke elsewhere since
				p.settle(e.Key, it, foreign)
				p.step.Lost = append(p.step.Lost, e.Key)
			}
			continue
		}
		p.know(e.Key, it, e.Value)
		it.at, it.since = r.Revision, r.SinceOf(n, e)
		it.adopt = it.said
	}
	for _, key := range p.gone {
		if it, ok := p.items.Get(key); ok {
			p.know(key, it, nil)
			if it.value == nil {
				p.drop(key)
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

// putBack has what was in a batch sent again. What a sweep sent it sends again by itself.
func (p *Publisher) putBack(b *coord.RegisterBatch) {
	if b.Replace != nil {
		return
	}
	for _, e := range b.Puts {
		p.touch(e.Key)
	}
	for _, key := range b.Deletes {
		p.touch(key)
	}
	p.due = p.now
}

// narrow looks for the entries for which there is no room, by smaller batches: they must not keep out the others, nor
// deletions, which make room.
func (p *Publisher) narrow(b *coord.RegisterBatch, err error) {
	if len(b.Puts)+len(b.Deletes) == 1 {
		p.refuse(b.Puts[0].Key, err)
		return
	}
	p.done()
	p.most = max(1, (len(b.Puts)+len(b.Deletes))/2)
}

// refuse leaves an entry out that the group will not have.
func (p *Publisher) refuse(key string, err error) {
	p.done()
	if it, ok := p.items.Get(key); ok {
		p.settle(key, it, refused)
	}
	p.step.Refused = map[string]error{key: err}
}

// culprit finds the entry that an error names.
func culprit(b *coord.RegisterBatch, field string) (string, bool) {
	number, _, ok := strings.Cut(strings.TrimPrefix(field, "puts["), "]")
	i, err := strconv.Atoi(number)
	if !ok || err != nil || i < 0 || i >= len(b.Puts) {
		return "", false
	}
	return b.Puts[i].Key, true
}

// reconsider tries again what was another owner's, who may be gone.
func (p *Publisher) reconsider() {
	if p.fates[foreign] == 0 || p.now < p.again {
		return
	}
	p.items.Scan(func(key string, it *item) bool {
		if it.fate == foreign {
			p.settle(key, it, fine)
			p.touch(key)
		}
		return true
	})
}
