package catalog

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/instance"
)

// entry is one change of one instance.
type entry struct {
	rev    uint64
	before *instance.Instance // nil: new instance
	after  *instance.Instance // after a removal the last state with StatusDown
	gone   bool
}

// state is an immutable state of a stream. Entries are numbered over the life
// of the stream; a skipped number separates unrelated histories.
type state struct {
	floor uint64 // the log contains all later changes, logFloor aside
	first uint64 // number of log[0]
	log   []entry
	base  []*instance.Instance // all instances after log[:based], by service and id
	based int
}

// end is the number of the next entry.
func (s *state) end() uint64 { return s.first + uint64(len(s.log)) }

// from returns the entries from a number on, at least first.
func (s *state) from(number uint64) []entry {
	return s.log[min(number-s.first, uint64(len(s.log))):]
}

// after returns the number of the first entry after a revision, at least floor.
func (s *state) after(rev uint64) uint64 {
	return s.first + uint64(sort.Search(len(s.log), func(i int) bool { return s.log[i].rev > rev }))
}

// stream is the history of a service or of a namespace. Reads take no lock.
type stream struct {
	name     instance.Name // without a service for a namespace
	state    atomic.Pointer[state]
	changed  pause.Broadcast
	results  memo
	services serviceList // of a namespace

	// Guarded by Catalog.mu:
	byID    map[string]*instance.Instance // nil for a namespace
	size    int                           // number of instances
	staged  []entry                       // not published yet
	holders int                           // waiters and watches
	place   int                           // index in Catalog.all
}

func newStream(n instance.Name, floor uint64) *stream {
	s := &stream{name: n}
	if n.Service != "" {
		s.byID = make(map[string]*instance.Instance)
	}
	s.state.Store(&state{floor: floor, first: 1})
	return s
}

// idle reports whether the stream is empty, except for Catalog.forgotten.
func (s *stream) idle() bool {
	return s.size == 0 && s.holders == 0 && len(s.state.Load().log) == 0
}

// publish appends the staged entries. States share log arrays; older ones end
// earlier.
func (s *stream) publish(limit int) {
	next := *s.state.Load()
	next.log = append(next.log, s.staged...)
	clear(s.staged)
	s.staged = s.staged[:0]
	if cap(s.staged) > limit {
		s.staged = nil
	}
	s.state.Store(&next)
	if len(next.log) > limit {
		s.truncate(len(next.log) - limit/2)
	}
}

// truncate drops the oldest n entries. Cached results are updated first, which
// keeps their indexes exact.
func (s *stream) truncate(n int) {
	if n == 0 {
		return
	}
	s.results.read(s)
	old := s.state.Load()
	net, _ := netOf(everything(), old.log[old.based:])
	next := &state{
		floor: old.log[n-1].rev,
		first: old.first + uint64(n),
		log:   slices.Clone(old.log[n:]),
		base:  merge(old.base, net, instance.Matcher{}.Compare),
	}
	next.based = len(next.log)
	s.state.Store(next)
}

// restart forgets all history.
func (s *stream) restart(rev uint64, list []*instance.Instance) {
	s.size = len(list)
	s.state.Store(&state{floor: rev, first: s.state.Load().end() + 1, base: list})
}

// memo caches results by selector, least recently used first out. The zero
// value is empty.
type memo struct {
	byKey atomic.Pointer[map[string]*result]

	mu    sync.Mutex // guards order, and changes of byKey
	order []*result  // oldest first
}

// get returns nil for an unknown selector.
func (m *memo) get(key []byte) *result {
	p := m.byKey.Load()
	if p == nil {
		return nil
	}
	r := (*p)[string(key)]
	if r != nil && !r.used.Load() {
		r.used.Store(true)
	}
	return r
}

// add returns the cached result of the same key, or caches r. Beyond limit it
// evicts the oldest result not used since its last turn (second chance).
func (m *memo) add(r *result, limit int) *result {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := make(map[string]*result, len(m.order)+1)
	for _, old := range m.order {
		if old.key == r.key {
			return old
		}
		next[old.key] = old
	}
	for len(m.order) >= limit {
		old := m.order[0]
		m.order = append(m.order[:0], m.order[1:]...)
		if old.used.Swap(false) {
			m.order = append(m.order, old)
			continue
		}
		delete(next, old.key)
	}
	next[r.key] = r
	m.order = append(m.order, r)
	m.byKey.Store(&next)
	return r
}

// read updates all cached results.
func (m *memo) read(s *stream) {
	p := m.byKey.Load()
	if p == nil {
		return
	}
	for _, r := range *p {
		r.read(s)
	}
}
