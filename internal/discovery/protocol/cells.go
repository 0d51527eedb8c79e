package protocol

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// CellAt returns the key of another cell of the same type and subtype.
func CellAt(c records.CellKey, place geo.Cell) records.CellKey {
	return records.CellKey{Type: c.Type, Subtype: c.Subtype, Cell: place}
}

// CompareCells orders cells by their keys.
func CompareCells(a, b records.CellKey) int {
	return strings.Compare(a.String(), b.String())
}

// CellNames returns the keys of some cells.
func CellNames(cells []records.CellKey) []string {
	names := make([]string, len(cells))
	for i, c := range cells {
		names[i] = c.String()
	}
	return names
}

// CellsOf parses 1 to most cell keys.
func CellsOf(keys []string, most int) ([]records.CellKey, error) {
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

// CellsBelow returns the cells of a record below geo.MaxLen. Publishers use them only below
// a full cell.
func CellsBelow(r *records.Record) []records.CellKey {
	at, ok := r.Facts().Place()
	if !ok {
		return nil
	}
	var cells []records.CellKey
	for length := geo.MaxLen + 1; length <= geo.DeepLen; length++ {
		c := records.CellKey{Type: r.Type(), Subtype: records.AnySubtype, Cell: geo.CellOf(at, length)}
		cells = append(cells, c)
		if r.Subtype() != "" {
			c.Subtype = r.Subtype()
			cells = append(cells, c)
		}
	}
	return cells
}
