package keep

import (
	"net/netip"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/pkg/fault"
)

const maxPrefixes = 4096 // address prefixes with a quota

// quotas limit the rate of records from each address prefix.
type quotas struct{ *bounded.Buckets[netip.Prefix] }

func newQuotas(l protocol.Limits) quotas {
	return quotas{bounded.NewBuckets[netip.Prefix](maxPrefixes, rate.Limit(l.StoreRate), l.StoreBurst)}
}

// take takes one record from the quota of a source. It returns LimitReached for an empty quota.
func (q quotas) take(s protocol.Source, now time.Time) error {
	if s.Exempt || q.Of(s.Prefix).AllowN(now, 1) {
		return nil
	}
	return fault.New("", fault.LimitReached, "too many records from network %s: try again later", s.Prefix)
}
