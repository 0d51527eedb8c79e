package keep

import (
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	maxAcks = 1 << 14         // acknowledgements of own records: 100 records at 130 keepers, with room
	ackTTL  = 5 * time.Minute // acknowledgement lifetime
)

// acks remember for a short time which keepers took which versions of this peer's own records. A
// repeated announcement then goes only to the keepers that missed the first one: with one slow
// keeper, a busy network would otherwise carry every record to all keepers again and again. They
// are safe for concurrent use.
type acks struct{ taken *lru.Cache[ackKey, ack] }

type ackKey struct {
	version [32]byte // digest of the record
	keeper  peer.ID
}

type ack struct {
	cells []string // that the keeper took the version for; equal requests list equal cells in equal order
	until time.Time
}

func newAcks() acks { return acks{bounded.Shared[ackKey, ack](maxAcks)} }

// add notes that a keeper took a record for some cells.
func (a acks) add(r *records.Record, keeper peer.ID, cells []string, now time.Time) {
	a.taken.Add(ackKey{r.Digest(), keeper}, ack{cells, now.Add(ackTTL)})
}

// has reports whether a keeper took a record for exactly these cells a short time ago.
func (a acks) has(r *records.Record, keeper peer.ID, cells []string, now time.Time) bool {
	known, ok := a.taken.Get(ackKey{r.Digest(), keeper})
	return ok && now.Before(known.until) && slices.Equal(known.cells, cells)
}
