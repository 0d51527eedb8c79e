package registry

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of the memory of removed instances. A late heartbeat of such an
// instance learns of the removal.
const (
	maxTombstones = 10_000
	tombstoneTime = time.Hour
)

// tombstones holds the times of the latest removals in memory.
type tombstones struct {
	byKey   *simplelru.LRU[instance.Key, time.Time]
	byLease *simplelru.LRU[string, time.Time]
}

func newTombstones() tombstones {
	return tombstones{byKey: bounded.Map[instance.Key, time.Time](maxTombstones, nil), byLease: bounded.Map[string, time.Time](maxTombstones, nil)}
}

func (g tombstones) add(i *instance.Instance, now time.Time) {
	g.byKey.Add(i.Key, now)
	g.byLease.Add(i.Lease, now)
}

// find returns the time of a removal by lease or key.
func (g tombstones) find(ref instances.Ref, now time.Time) (time.Time, bool) {
	at, ok := g.byLease.Peek(ref.Lease)
	if ref.Lease == "" {
		at, ok = g.byKey.Peek(ref.Key.WithDefaults())
	}
	return at, ok && now.Sub(at) < tombstoneTime
}
