package place

import (
	"time"

	"github.com/blackhole/blackhole/internal/discovery/wire"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	maxHints  = 8192             // split hints of other keepers
	maxHinted = 4096             // cells that they concern
	hintTTL   = 10 * time.Minute // lifetime of a split hint; less than cell.Grace
)

// splitHints are the split cells known to this peer as a publisher. Each keeper's hint
// concerns that keeper only, so a false hint deprives only its author of records. The number of
// hints is bounded, each expires after hintTTL, and all methods are safe for concurrent use.
type splitHints struct {
	hints      *lru.Cache[hintKey, splitHint]
	splitCells wire.TimedSet[records.CellKey] // cells that at least one keeper split
}

// hintKey identifies the hint of one keeper about one cell.
type hintKey struct {
	keeper peer.ID
	cell   records.CellKey
}

// splitHint names the records that a keeper still wants for a split cell.
type splitHint struct {
	cell.SplitInfo
	until time.Time
}

func newSplitHints() *splitHints {
	return &splitHints{bounded.Shared[hintKey, splitHint](maxHints), wire.NewTimedSet[records.CellKey](maxHinted)}
}

// add adds the hints in a keeper's response. Asked reports whether the request named a cell.
// It returns Unauthentic for a hint that violates the protocol.
func (h *splitHints) add(id peer.ID, splits []*pb.Split, asked func(records.CellKey) bool, now time.Time) error {
	for _, m := range splits {
		c, err := records.ParseCellKey(m.GetCell())
		if err != nil || !asked(c) {
			return wire.Breach("a split of a cell outside the request")
		}
		info, err := cell.SplitInfoFromProto(c.Cell, m)
		if err != nil {
			return fault.Wrap("keeper.Store", err)
		}
		key := hintKey{id, c}
		hint := splitHint{info, now.Add(hintTTL)}
		if old, ok := h.hints.Peek(key); ok && now.Before(old.until) {
			// The old hint describes other children. The sum expires with its oldest part.
			hint.until = old.until
			for place, summary := range old.Children {
				if _, again := info.Children[place]; !again {
					info.Children[place] = summary
				}
			}
		}
		h.hints.Add(key, hint)
		h.splitCells.Add(c, now.Add(hintTTL))
	}
	return nil
}

// wants reports whether a keeper wants a record for a cell. Without a hint it is true.
func (h *splitHints) wants(id peer.ID, c records.CellKey, r *records.Record, now time.Time) bool {
	hint, ok := h.hints.Get(hintKey{id, c})
	return !ok || !now.Before(hint.until) || cell.Wants(c.Cell, hint.Below, hint.Children, r)
}

// isSplit reports whether a keeper of a cell recently split it.
func (h *splitHints) isSplit(c records.CellKey, now time.Time) bool { return h.splitCells.Has(c, now) }
