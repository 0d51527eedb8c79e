package machine

import (
	"sort"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// chunkSize is the number of events in a chunk. MAGIC: large enough for small clones, small enough
// to free memory soon.
const chunkSize = 256

// maxWaste bounds the dropped events in bytes: those of a whole chunk would be hundreds of megabytes.
const maxWaste = 4 << 20

// history is a ring of events in the order of their revisions: chunks join at the end and leave at
// the beginning. A stored event never changes, so clones share the chunks.
type history struct {
	chunks [][]coord.Event // all except the last hold chunkSize events
	off    int             // dropped events of the first chunk
	n      int             // events held
	bytes  int64           // their sizes
	waste  int64           // sizes of dropped events that the first chunk still holds
}

func (h *history) clone() history {
	c := *h
	c.chunks = append([][]coord.Event(nil), h.chunks...)
	return c
}

func (h *history) push(e coord.Event) {
	last := len(h.chunks) - 1
	if last < 0 || len(h.chunks[last]) == chunkSize {
		h.chunks = append(h.chunks, make([]coord.Event, 0, chunkSize))
		last++
	}
	h.chunks[last] = append(h.chunks[last], e)
	h.n++
	h.bytes += eventSize(&e)
}

// at returns event i; event 0 is the oldest.
func (h *history) at(i int) *coord.Event {
	i += h.off
	return &h.chunks[i/chunkSize][i%chunkSize]
}

// search returns the position of the first event from a revision on, or n.
func (h *history) search(from coord.Revision) int {
	return sort.Search(h.n, func(i int) bool { return h.at(i).Revision >= from })
}

// drop forgets the events up to a revision.
func (h *history) drop(revision coord.Revision) {
	for h.n > 0 && h.at(0).Revision <= revision {
		size := eventSize(h.at(0))
		h.bytes -= size
		h.waste += size
		h.n--
		if h.off++; h.off == chunkSize {
			h.chunks, h.off, h.waste = h.chunks[1:], 0, 0
		}
	}
	switch {
	case h.n == 0:
		h.chunks, h.off, h.waste = nil, 0, 0
	case h.waste > maxWaste: // clones keep the old chunk
		h.chunks[0], h.waste = append(make([]coord.Event, h.off, chunkSize), h.chunks[0][h.off:]...), 0
	}
}

// free forgets the events of a span before a revision. It copies all others, once for each compaction of a front.
func (h *history) free(span coord.Span, before coord.Revision) {
	old := *h
	end, kept := old.search(before), history{}
	for i := range old.n {
		if e := old.at(i); i >= end || !span.Contains(e.Key) {
			kept.push(*e)
		}
	}
	if kept.n < old.n {
		*h = kept
	}
}

// kvSize is the number of bytes that a version counts against the limits.
func kvSize(kv *coord.KeyValue) int64 {
	if kv == nil {
		return 0
	}
	return rawSize(len(kv.Key), len(kv.Value))
}

func rawSize(key, value int) int64 {
	const overhead = 160 // MAGIC: struct, string and tree slot, measured to about 150
	return int64(key) + int64(value) + overhead
}

func eventSize(e *coord.Event) int64 { return 64 + kvSize(e.KV) + kvSize(e.Prev) }
