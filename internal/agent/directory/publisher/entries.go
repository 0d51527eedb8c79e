package publisher

import (
	"bytes"
	"time"

	"github.com/tidwall/btree"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
)

// entrySet holds the desired and the acknowledged entries.
type entrySet struct {
	items  itemMap
	dirty  keySet           // changed and not sent
	newer  keySet           // changed during a Resync
	digest directory.Digest // of all acknowledged entries
	counts [reasons]int     // items by reason; counts[accepted] has no meaning
	again  time.Duration    // next attempt for foreign and crowded items
	probe  int              // crowded items of the next attempt

	now time.Duration // set by Advance
}

// item is the entry of one key.
type item struct {
	value     []byte         // desired value; nil: to be removed
	known     []byte         // acknowledged value; nil: none
	sent      bool           // the group may have a value, acknowledged or not
	principal string         // of the registration; see directory.Entry
	adopt     bool           // registered here, not committed yet
	repeated  bool           // registered here again since the last send
	since     coord.Revision // of the registration as last committed; 0: unknown
	committed coord.Revision // of known
	reason    reason
}

// synced reports whether the acknowledged value is the desired one.
func (it *item) synced() bool { return it.value != nil && bytes.Equal(it.value, it.known) }

// reason explains an entry that the group lacks and the publisher does not send.
type reason uint8

const (
	accepted reason = iota // no reason: send
	foreign                // another owner registered or removed it later
	rejected               // the group does not accept it
	crowded                // the group has no room for it now

	reasons // count, keep last
)

type (
	itemMap = btree.Map[string, *item]
	keySet  = btree.Set[string]
)

// drop forgets a key.
func (s *entrySet) drop(key string) {
	s.items.Delete(key)
	s.dirty.Delete(key)
}

// set gives an item a reason. Foreign and crowded items are tried again later.
func (s *entrySet) set(key string, it *item, to reason) {
	s.counts[it.reason]--
	s.counts[to]++
	if it.reason = to; to == accepted {
		return
	}
	s.dirty.Delete(key)
	s.acknowledge(key, it, nil)
	if to != rejected && s.counts[foreign]+s.counts[crowded] == 1 {
		s.again = s.now + reconsider
	}
}

// acknowledge notes the group's value of a key; nil means none.
func (s *entrySet) acknowledge(key string, it *item, value []byte) {
	if it.known != nil {
		s.digest.Remove(key, it.known)
	}
	if it.known = value; value != nil {
		s.digest.Add(key, value)
	}
}

// forgetCommitted forgets all acknowledged values.
func (s *entrySet) forgetCommitted() {
	s.digest = directory.Digest{}
	s.items.Scan(func(_ string, it *item) bool {
		it.known, it.sent = nil, false
		return true
	})
}

// replace starts a resync with the listed entries. A key changed during the
// list keeps its newer value.
func (s *entrySet) replace(listed []directory.Entry) {
	before, newer := s.items, s.newer
	s.items, s.dirty, s.newer, s.digest, s.counts = itemMap{}, keySet{}, keySet{}, directory.Digest{}, [reasons]int{}
	for _, put := range listed {
		was, _ := before.Get(put.Key)
		if !newer.Contains(put.Key) {
			s.begin(put, was)
		}
	}
	newer.Scan(func(key string) bool {
		if was, ok := before.Get(key); ok && was.value != nil {
			s.begin(directory.Entry{Key: key, Value: was.value, Principal: was.principal}, was)
		}
		return true
	})
}

// begin adds an unsent item. Its predecessor keeps the registration, and a
// rejection of the same value; a foreign entry is tried again.
func (s *entrySet) begin(put directory.Entry, was *item) {
	it := &item{value: put.Value, principal: put.Principal, adopt: put.Adopt}
	if was != nil {
		it.adopt, it.since, it.committed = it.adopt || was.adopt, was.since, was.committed
		if (was.reason == rejected || was.reason == crowded) && bytes.Equal(was.value, put.Value) {
			it.reason = was.reason
		}
	}
	s.items.Set(put.Key, it)
	s.counts[it.reason]++
}

// change notes local changes.
func (p *Publisher) change(e Local) {
	_, listing := p.inFlight.(Resync)
	for _, put := range e.Puts {
		if p.entries.put(put); listing {
			p.entries.newer.Insert(put.Key)
		}
	}
	for _, key := range e.Deletes {
		if listing {
			p.entries.newer.Insert(key)
		}
		it, ok := p.entries.items.Get(key)
		if !ok || it.value == nil {
			continue
		}
		it.value, it.adopt, it.since = nil, false, 0
		if p.entries.set(key, it, accepted); it.sent {
			p.entries.dirty.Insert(key)
		} else {
			p.entries.drop(key)
		}
	}
}

// put notes an entry: a registration if Adopt is set, otherwise a change of
// health. Only a registration takes a foreign key back.
func (s *entrySet) put(e directory.Entry) {
	it, ok := s.items.Get(e.Key)
	if !ok {
		it = &item{}
		s.items.Set(e.Key, it)
	}
	same := it.value != nil && bytes.Equal(it.value, e.Value)
	it.value, it.principal, it.adopt, it.repeated = e.Value, e.Principal, it.adopt || e.Adopt, it.repeated || e.Adopt
	if (it.reason == rejected || it.reason == crowded) && !same || it.reason == foreign && e.Adopt {
		s.set(e.Key, it, accepted)
	}
	if it.reason == accepted && (!same || e.Adopt) {
		s.dirty.Insert(e.Key)
	}
}

// listed starts the sweep of a resync.
func (p *Publisher) listed(e Listed) {
	p.inFlight, p.list = nil, false
	p.entries.replace(e.Entries)
	from := directory.Prefix
	p.sweep = &from
}

// retry tries foreign entries again, because their owner may be gone, and a crowded one, because there may be room. A success
// tries twice as many at once.
func (s *entrySet) retry() {
	if s.counts[foreign]+s.counts[crowded] == 0 || s.now < s.again {
		return
	}
	s.again = s.now + reconsider
	room := max(s.probe, 1)
	s.items.Scan(func(key string, it *item) bool {
		if it.reason == crowded {
			room--
		}
		if it.reason == foreign || it.reason == crowded && room >= 0 {
			s.set(key, it, accepted)
			s.dirty.Insert(key)
		}
		return true
	})
}
