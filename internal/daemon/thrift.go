package daemon

import (
	"math"
	"runtime/debug"
)

// A leaf runs beside its application, often on a small machine, and trades CPU time for memory.
const (
	leafGC     = 40       // percent
	leafMemory = 24 << 20 // bytes of the Go runtime; soft, so a busy leaf may exceed it

	// leafRecords bounds the index of a leaf, which holds what it asked for and follows.
	leafRecords = 2000
)

// thrift saves memory in this process from now on. GOGC and GOMEMLIMIT have precedence.
func thrift() {
	if gc := debug.SetGCPercent(leafGC); gc != 100 { // not the default: GOGC is set
		debug.SetGCPercent(gc)
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(leafMemory)
	}
}

// indexRecords is the size of this peer's index.
func (p *parts) indexRecords() int {
	most := p.config.Discovery.Limits.IndexRecords
	if p.config.IsLeaf() {
		return min(most, leafRecords)
	}
	return most
}
