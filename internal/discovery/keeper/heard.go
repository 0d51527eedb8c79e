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

// heard is what this peer, as a publisher, has heard of divided cells: from each keeper for
// itself, so that one who lies only spares itself records. It is bounded, forgets after
// heardFor, and is safe for concurrent use.
type heard struct {
	said    *lru.Cache[saying, statement]
	divided *lru.Cache[records.CellKey, time.Time] // cells that some keeper said it has divided, until when
}

// saying is by whom, and of what.
type saying struct {
	by peer.ID
	of records.CellKey
}

type statement struct {
	cell.Split
	until time.Time
}

func newHeard() *heard {
	said, err := lru.New[saying, statement](statementsHeard)
	divided, err2 := lru.New[records.CellKey, time.Time](cellsRemembered)
	if err = errors.Join(err, err2); err != nil {
		panic("keeper: " + err.Error()) // impossible: the sizes are positive constants
	}
	return &heard{said: said, divided: divided}
}

// learn takes in what a keeper says of the cells that it was brought records for. It returns
// Unauthentic for what no honest keeper says.
func (h *heard) learn(by peer.ID, splits []*pb.Split, asked func(records.CellKey) bool, now time.Time) error {
	for _, m := range splits {
		c, err := records.ParseCellKey(m.GetCell())
		if err != nil || !asked(c) {
			return nonsense("a division of a cell that no record was brought for")
		}
		s, err := cell.SplitFromProto(c.Cell, m)
		if err != nil {
			return fault.Wrap("keeper.Store", err)
		}
		if old, ok := h.said.Peek(saying{by, c}); ok && now.Before(old.until) {
			for place, summary := range old.Children { // of other records; as old as they are
				if _, again := s.Children[place]; !again && len(s.Children) < cell.MaxChildren {
					s.Children[place] = summary
				}
			}
			h.said.Add(saying{by, c}, statement{s, old.until})
		} else {
			h.said.Add(saying{by, c}, statement{s, now.Add(heardFor)})
		}
		h.divided.Add(c, now.Add(heardFor))
	}
	return nil
}

// wants reports whether a keeper wants a record for a cell, as far as it has said.
func (h *heard) wants(id peer.ID, c records.CellKey, r *records.Record, now time.Time) bool {
	s, ok := h.said.Get(saying{id, c})
	return !ok || !now.Before(s.until) || cell.Wants(c.Cell, s.Below, s.Children, r)
}

// isDivided reports whether some keeper of a cell said lately that it has divided it.
func (h *heard) isDivided(c records.CellKey, now time.Time) bool {
	until, ok := h.divided.Get(c)
	return ok && now.Before(until)
}
