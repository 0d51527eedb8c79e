package registry

import (
	"time"

	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of the memory of removed instances. A late heartbeat of such an
// instance learns of the removal.
const (
	maxTombstones = 10_000
	tombstoneTime = time.Hour
)

// tombstone is a removed instance.
type tombstone struct {
	key   instance.Key
	lease string
	at    time.Time
}

// tombstones holds the latest removals in memory.
//
// Invariant: list[first:] is ordered by at; the maps hold the latest removal of
// each key and lease.
type tombstones struct {
	list    []tombstone
	first   int
	byKey   map[instance.Key]time.Time
	byLease map[string]time.Time
}

func newTombstones() tombstones {
	return tombstones{byKey: make(map[instance.Key]time.Time), byLease: make(map[string]time.Time)}
}

func (g *tombstones) add(i *instance.Instance, now time.Time) {
	if n := len(g.list); n > 0 && now.Before(g.list[n-1].at) {
		now = g.list[n-1].at // callers read their clocks before they queue
	}
	g.list = append(g.list, tombstone{i.Key, i.Lease, now})
	g.byKey[i.Key], g.byLease[i.Lease] = now, now
	g.forget(now)
}

// forget drops old and surplus tombstones.
func (g *tombstones) forget(now time.Time) {
	for g.first < len(g.list) {
		old := g.list[g.first]
		if len(g.list)-g.first <= maxTombstones && now.Sub(old.at) < tombstoneTime {
			break
		}
		if g.byKey[old.key].Equal(old.at) {
			delete(g.byKey, old.key)
		}
		delete(g.byLease, old.lease)
		g.list[g.first] = tombstone{}
		g.first++
	}
	if g.first > len(g.list)/2 {
		g.list = append(g.list[:0:0], g.list[g.first:]...)
		g.first = 0
	}
}

// find returns the time of a removal by lease or key.
func (g *tombstones) find(ref instance.Ref, now time.Time) (time.Time, bool) {
	at, ok := g.byLease[ref.Lease]
	if ref.Lease == "" {
		at, ok = g.byKey[ref.Key.WithDefaults()]
	}
	return at, ok && now.Sub(at) < tombstoneTime
}
