package registry

import (
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

// What is remembered of instances that are gone, so that one that beats on learns that it has to
// register again.
const (
	maxGraves = 10_000
	graveTime = time.Hour
)

// grave is one instance that is gone.
type grave struct {
	key   instance.Key
	lease string
	at    time.Time
}

// graves remembers the last of them, in memory.
//
// Invariant: graves[first:] are in order of at; the maps name the latest of each key and lease.
type graves struct {
	list    []grave
	first   int
	byKey   map[instance.Key]time.Time
	byLease map[string]time.Time
}

func newGraves() graves {
	return graves{byKey: make(map[instance.Key]time.Time), byLease: make(map[string]time.Time)}
}

func (g *graves) add(i *instance.Instance, now time.Time) {
	if n := len(g.list); n > 0 && now.Before(g.list[n-1].at) {
		now = g.list[n-1].at // callers' clocks are read before they queue
	}
	g.list = append(g.list, grave{i.Key, i.Lease, now})
	g.byKey[i.Key], g.byLease[i.Lease] = now, now
	g.forget(now)
}

// forget drops those that are too old or too many.
func (g *graves) forget(now time.Time) {
	for g.first < len(g.list) {
		old := g.list[g.first]
		if len(g.list)-g.first <= maxGraves && now.Sub(old.at) < graveTime {
			break
		}
		if g.byKey[old.key].Equal(old.at) {
			delete(g.byKey, old.key)
		}
		delete(g.byLease, old.lease)
		g.list[g.first] = grave{}
		g.first++
	}
	if g.first > len(g.list)/2 {
		g.list = append(g.list[:0:0], g.list[g.first:]...)
		g.first = 0
	}
}

// find gives when an instance went, by its lease or its key.
func (g *graves) find(ref instance.Ref, now time.Time) (time.Time, bool) {
	at, ok := g.byLease[ref.Lease]
	if ref.Lease == "" {
		at, ok = g.byKey[ref.Key.WithDefaults()]
	}
	return at, ok && now.Sub(at) < graveTime
}
