package catalog

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/instance"
)

// shards is a power of two. A writer copies one shard; a reader takes no lock.
// MAGIC
const shards = 256

// table maps names to streams, without a lock for readers. A name without a
// service is a namespace. Names that differ by letter case alone stand together.
// Writers hold Catalog.mu.
type table struct {
	seed   maphash.Seed
	shards [shards]atomic.Pointer[map[instance.Name][]*stream] // by folded name; the lists are read-only
}

func (t *table) shard(folded instance.Name) *atomic.Pointer[map[instance.Name][]*stream] {
	return &t.shards[maphash.String(t.seed, folded.Service)&(shards-1)]
}

func fold(n instance.Name) instance.Name {
	n.Service = strings.ToLower(n.Service)
	return n
}

// alike returns the streams of a name in any letter case.
func (t *table) alike(n instance.Name) []*stream {
	n = fold(n)
	m := t.shard(n).Load()
	if m == nil {
		return nil
	}
	return (*m)[n]
}

// get returns nil for an unknown name.
func (t *table) get(n instance.Name) *stream {
	for _, s := range t.alike(n) {
		if s.name == n {
			return s
		}
	}
	return nil
}

func (t *table) put(s *stream) {
	t.set(s.name, append(slices.Clone(t.alike(s.name)), s))
}

func (t *table) remove(n instance.Name) {
	t.set(n, slices.DeleteFunc(slices.Clone(t.alike(n)), func(s *stream) bool { return s.name == n }))
}

func (t *table) set(n instance.Name, list []*stream) {
	n = fold(n)
	p := t.shard(n)
	next := make(map[instance.Name][]*stream)
	if m := p.Load(); m != nil {
		maps.Copy(next, *m)
	}
	next[n] = list
	if len(list) == 0 {
		delete(next, n)
	}
	p.Store(&next)
}
