package daemon

import (
	"errors"
	"io/fs"
	"math"
	"runtime/debug"
	"slices"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/pkg/fault"
)

// A leaf runs beside its application, often on a small machine, and trades CPU time for memory.
const (
	leafGC     = 40       // percent
	leafMemory = 24 << 20 // bytes of the Go runtime; soft, so a busy leaf may exceed it

	// leafIndex bounds the index of a leaf in bytes. It holds what the leaf asked for and follows.
	leafIndex = 4 << 20
)

// The default size of the index: one part in indexShare of the memory limit, at most maxIndex bytes.
const (
	indexShare = 4
	maxIndex   = 4 << 30
)

// saveMemory saves memory in this process from now on. GOGC and GOMEMLIMIT have precedence.
func saveMemory() {
	if gc := debug.SetGCPercent(leafGC); gc != 100 { // not the default: GOGC is set
		debug.SetGCPercent(gc)
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(leafMemory)
	}
}

// indexBytes is the size of this peer's index; 0: the default of the package.
func (p *parts) indexBytes() int64 {
	switch set := p.config.Discovery.Limits.IndexBytes; {
	case set > 0:
		return int64(set)
	case p.config.IsLeaf():
		return leafIndex
	}
	return min(memoryLimit()/indexShare, maxIndex)
}

// checkDisk raises or clears condition.Disk by the space on the disk of a directory.
func checkDisk(dir string, free func(dir string) (uint64, error), conditions *condition.Set) {
	left, err := free(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		conditions.Raise(condition.Disk, fault.Problem{
			What: "the data directory " + dir + " is gone", Effect: "this peer writes to deleted files, and its end loses them",
			Remedy: "Let another peer take its vote by `blackholed group replace`, then restart this one",
		})
		return
	case err != nil || left >= disk.Low:
		conditions.Clear(condition.Disk)
		return
	}
	p := fault.Problem{
		What: "the disk of " + dir + " is nearly full", State: fault.Coming,
		Effect: "when it is full, offers and registrations are refused, and this peer's member of the group stops",
		Remedy: "Make room: `df -h " + dir + "` names the disk",
	}
	if slices.Contains(conditions.ActiveNames(), string(condition.MemberStopped)) {
		p.What, p.Effect, p.State = "the disk of "+dir+" is full", "offers and registrations are refused", fault.Now
	}
	conditions.Raise(condition.Disk, p)
}

// memoryLimit returns the lowest limit of this process's memory in bytes: GOMEMLIMIT, the limit of its control
// group, or the memory of the machine. 0: unknown.
func memoryLimit() int64 {
	limit := debug.SetMemoryLimit(-1)
	for _, of := range []memlimit.Provider{memlimit.FromCgroup, memlimit.FromSystem} {
		if n, err := of(); err == nil && n > 0 && n < uint64(limit) {
			limit = int64(n)
		}
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}
