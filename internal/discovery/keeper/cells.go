package keeper

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// cellAt returns the key of another cell of the same type and subtype.
func cellAt(c records.CellKey, place geo.Cell) records.CellKey {
	return records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: place}
}

func compareCells(a, b records.CellKey) int {
	return strings.Compare(a.String(), b.String())
}

// cellNames returns the keys of some cells.
func cellNames(cells []records.CellKey) []string {
	names := make([]string, len(cells))
	for i, c := range cells {
		names[i] = c.String()
	}
	return names
}

// cellsOf parses 1 to most cell keys.
func cellsOf(keys []string, most int) ([]records.CellKey, error) {
	if len(keys) == 0 || len(keys) > most {
		return nil, fault.Invalidf("cells", len(keys), "must be 1 to %d", most)
	}
	cells := make([]records.CellKey, len(keys))
	for i, key := range keys {
		c, err := records.ParseCellKey(key)
		if err != nil {
			return nil, &fault.Error{Kind: fault.Invalid, Field: "cells", Value: key, Err: err}
		}
		cells[i] = c
	}
	return cells, nil
}
