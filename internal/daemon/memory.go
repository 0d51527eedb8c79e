package daemon

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"

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

// A larger heap may have half of its size in garbage, not all of it: by default a process keeps about twice its
// live data of the machine, and the collector has the time.
const (
	smallHeap   = 32 << 20 // bytes of live data, beside which as much garbage is allowed
	largeHeapGC = 50       // percent of the live data, at least
	gcEvery     = 10 * time.Second
)

// garbagePercent is how much garbage is allowed beside live data.
func garbagePercent(live uint64) int {
	return max(largeHeapGC, min(100, int(100*smallHeap/max(live, 1))))
}

// boundGarbage adapts the collector to the size of the heap until ctx ends.
func boundGarbage(ctx context.Context) {
	tick := time.NewTicker(gcEvery)
	defer tick.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for {
		if metrics.Read(live); live[0].Value.Kind() == metrics.KindUint64 {
			debug.SetGCPercent(garbagePercent(live[0].Value.Uint64()))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
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
