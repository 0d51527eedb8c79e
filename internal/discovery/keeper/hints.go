package keeper

import (
	"errors"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// receivedHints is what this peer, as a publisher, has heard of divided cells: from each keeper for
// itself, so that one who lies only spares itself records. It is bounded, forgets after
// hintTTL, and is safe for concurrent use.
type splitHints struct {
	hints      *lru.Cache[hintKey, splitHint]
	splitCells *lru.Cache[records.CellKey, time.Time] // cells that some keeper said it has divided, until when
}

// hintKey is by whom, and of what.
type hintKey struct {
	keeper peer.ID
	cell   records.CellKey
}

type splitHint struct {
	cell.SplitInfo
	until time.Time
}

func newSplitHints() *splitHints {
	said, err := lru.New[hintKey, splitHint](maxHints)
	divided, err2 := lru.New[records.CellKey, time.Time](maxCachedCells)
	if err = errors.Join(err, err2); err != nil {
		panic("keeper: " + err.Error()) // impossible: the sizes are positive constants
	}
	return &splitHints{hints: said, splitCells: divided}
}

// merge takes in what a keeper says of the cells that it was brought records for. It returns
// Unauthentic for what no honest keeper says.
func (h *splitHints) add(by peer.ID, splits []*pb.Split, asked func(records.CellKey) bool, now time.Time) error {
	for _, m := range splits {
		c, err := records.ParseCellKey(m.GetCell())
		if err != nil || !asked(c) {
			return breach("a division of a cell that no record was brought for")
		}
		s, err := cell.SplitInfoFromProto(c.Cell, m)
		if err != nil {
			return fault.Wrap("keeper.Store", err)
		}
		if old, ok := h.hints.Peek(hintKey{by, c}); ok && now.Before(old.until) {
			for place, summary := range old.Children { // parentepers other records; as old as they are
				if _, again := s.Children[place]; !again && len(s.Children) < cell.MaxChildren {
					s.Children[place] = summary
				}
			}
			h.hints.Add(hintKey{by, c}, splitHint{s, old.until})
		} else {
			h.hints.Add(hintKey{by, c}, splitHint{s, now.Add(hintTTL)})
		}
		h.splitCells.Add(c, now.Add(hintTTL))
	}
	return nil
}

// wants reports whether a keeper wants a record for a cell, as far as it has said.
func (h *splitHints) wants(id peer.ID, c records.CellKey, r *records.Record, now time.Time) bool {
	s, ok := h.hints.Get(hintKey{id, c})
	return !ok || !now.Before(s.until) || cell.Wants(c.Cell, s.Below, s.Children, r)
}

// isSplit reports whether some keeper of a cell said lately that it has divided it.
func (h *splitHints) isSplit(c records.CellKey, now time.Time) bool {
	until, ok := h.splitCells.Get(c)
	return ok && now.Before(until)
}
