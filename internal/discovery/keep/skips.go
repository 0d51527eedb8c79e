package keep

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	maxSkips = 1 << 15       // pairs of keeper and full cell: 10,000 offers in all full cells of 10^6 have 13,000
	skipFor  = 4 * time.Hour // a publisher leaves a keeper out for a full cell; cells stay full for so much longer
)

// skips are the full cells of other keepers, as this peer knows them as a publisher. A skip concerns one keeper, so a
// false one deprives only its author of records. They are bounded, and safe for concurrent use.
type skips struct {
	until *lru.Cache[skip, time.Time]
	deep  protocol.TimedSet[records.CellKey] // cells of geo.MaxLen and more that a keeper called full
}

type skip struct {
	keeper peer.ID
	cell   records.CellKey
}

func newSkips() skips {
	return skips{bounded.Shared[skip, time.Time](maxSkips), protocol.NewTimedSet[records.CellKey](maxDeep)}
}

// add notes the full cells in the answer of a keeper to a STORE of some cells. It returns Unauthentic for others.
func (s skips) add(keeper peer.ID, full []string, asked func(cell string) bool, now time.Time) error {
	for _, key := range full {
		c, err := records.ParseCellKey(key)
		if err != nil || !asked(key) || !Divisible(c) {
			return protocol.Breach("a full cell outside the request")
		}
		if Sends(c) {
			s.deep.Add(c, now.Add(skipFor))
		} else {
			s.until.Add(skip{keeper, c}, now.Add(skipFor))
		}
	}
	return nil
}

// forget drops what a keeper said: it gives no answer, and may come back without records.
func (s skips) forget(keeper peer.ID) {
	for _, k := range s.until.Keys() {
		if k.keeper == keeper {
			s.until.Remove(k)
		}
	}
}

// wants reports whether a keeper gets a record for a cell. Withdrawals go everywhere.
func (s skips) wants(keeper peer.ID, c records.CellKey, r *records.Record, now time.Time) bool {
	if c.OfProvider() || r.Withdrawn() {
		return true
	}
	if _, leaf := leafOf(c, r); leaf {
		return true
	}
	until, known := s.until.Get(skip{keeper, c})
	return !known || !now.Before(until)
}

// childOf returns the child of a cell of geo.MaxLen or more to store a record for too: a keeper called the cell full.
func (s skips) childOf(c records.CellKey, r *records.Record, now time.Time) (records.CellKey, bool) {
	if c.OfProvider() || c.Cell.Len() < geo.MaxLen || !s.deep.Has(c, now) {
		return records.CellKey{}, false
	}
	return ChildOf(c, r)
}
