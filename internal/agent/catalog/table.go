package catalog

import (
	"hash/maphash"
	"maps"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/instance"
)

// shards is a power of two: a writer copies one shard, a reader locks none. MAGIC
const shards = 256

// table finds streams by name, without a lock. A name without a service is its namespace's. Writers
// hold Catalog.mu.
type table struct {
	seed   maphash.Seed
	shards [shards]atomic.Pointer[map[instance.Name]*stream]
}

func (t *table) shard(n instance.Name) *atomic.Pointer[map[instance.Name]*stream] {
	return &t.shards[maphash.String(t.seed, n.Service)&(shards-1)]
}

// get gives nil for a name that is not there.
func (t *table) get(n instance.Name) *stream {
	m := t.shard(n).Load()
	if m == nil {
		return nil
	}
	return (*m)[n]
}

func (t *table) put(s *stream) {
	p := t.shard(s.name)
	next := make(map[instance.Name]*stream)
	if m := p.Load(); m != nil {
		maps.Copy(next, *m)
	}
	next[s.name] = s
	p.Store(&next)
}

func (t *table) remove(n instance.Name) {
	p := t.shard(n)
	m := p.Load()
	if m == nil {
		return
	}
	next := maps.Clone(*m)
	delete(next, n)
	p.Store(&next)
}
