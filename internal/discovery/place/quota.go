package place

import (
	"net/netip"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/wire"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/pkg/fault"
)

const maxPrefixes = 4096 // address prefixes with a quota

// quotas limit the rate of records from each address prefix. They hold a bounded number of
// prefixes: the least recently used prefix loses its history.
type quotas struct {
	rate  rate.Limit
	burst int

	mu       sync.Mutex // makes a prefix get one limiter
	prefixes *lru.Cache[netip.Prefix, *rate.Limiter]
}

func newQuotas(l wire.Limits) *quotas {
	return &quotas{rate: rate.Limit(l.StoreRate), burst: l.StoreBurst, prefixes: wire.NewCache[netip.Prefix, *rate.Limiter](maxPrefixes)}
}

// take takes one record from the quota of a source. It returns LimitReached for an empty quota.
func (q *quotas) take(s wire.Source, now time.Time) error {
	if s.Exempt {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	bucket, ok := q.prefixes.Get(s.Prefix)
	if !ok {
		bucket = rate.NewLimiter(q.rate, q.burst)
		q.prefixes.Add(s.Prefix, bucket)
	}
	if !bucket.AllowN(now, 1) {
		return fault.New("", fault.LimitReached, "too many records from network %s: try again later", s.Prefix)
	}
	return nil
}
