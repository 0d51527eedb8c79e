package catalog

import (
	"hash/maphash"
	"maps"
	"sync/atomic"

	"github.com/blackhole/blackhole/pkg/instance"
)

// shards is a power of two. A writer copies one shard; a reader takes no lock.
// MAGIC
const shards = 256

// table maps names to streams, without a lock for readers. A name without a
// service is a namespace. Writers hold Catalog.mu.
type table struct {
	seed   maphash.Seed
	shards [shards]atomic.Pointer[map[instance.Name]*stream]
}

func (t *table) shard(n instance.Name) *atomic.Pointer[map[instance.Name]*stream] {
	return &t.shards[maphash.String(t.seed, n.Service)&(shards-1)]
}

// get returns nil for an unknown name.
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
