package query

import (
	"cmp"
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/records"
)

// Hit is one match with its rank value under some plan (Plan.Value).
type Hit struct {
	Record *records.Record
	Value  float64 // smaller is better; not NaN
}

// Compare is negative when a ranks before b: by value, then by record name. It is 0 only
// for versions of one service.
func (a Hit) Compare(b Hit) int {
	if c := cmp.Compare(a.Value, b.Value); c != 0 {
		return c
	}
	return a.Record.Name().Compare(b.Record.Name())
}

// TopK keeps the best k hits of a stream in memory of order k. Which hits are kept does
// not depend on the order in which they come. It is not safe for concurrent use.
type TopK struct {
	k    int
	heap []Hit   // at most k, the worst first: a max-heap under Compare
	next float64 // least value of all hits dropped, +Inf before
	lost bool    // whether any was dropped
}

// NewTopK gives an empty TopK. A k below 1 keeps nothing.
func NewTopK(k int) *TopK {
	return &TopK{k: max(0, k), next: math.Inf(1)}
}

// Offer takes the next hit of the stream. Each service may come once.
func (t *TopK) Offer(h Hit) {
	if len(t.heap) < t.k {
		t.heap = append(t.heap, h)
		t.up(len(t.heap) - 1)
		return
	}
	if t.k == 0 || h.Compare(t.heap[0]) >= 0 {
		t.drop(h)
		return
	}
	t.drop(t.heap[0])
	t.heap[0] = h
	t.down(0)
}

// Worst gives the last of the hits kept once there are k of them, and false before. From
// then on a hit that does not rank before it will be dropped, so a source that is known
// to have only such hits need not be read.
func (t *TopK) Worst() (Hit, bool) {
	if t.k == 0 || len(t.heap) < t.k {
		return Hit{}, false
	}
	return t.heap[0], true
}

// Next gives the rank value of the best hit dropped so far, and false while none was.
func (t *TopK) Next() (float64, bool) { return t.next, t.lost }

// Sorted gives the hits kept, best first. The caller owns the result.
func (t *TopK) Sorted() []Hit {
	hits := slices.Clone(t.heap)
	slices.SortFunc(hits, Hit.Compare)
	return hits
}

func (t *TopK) drop(h Hit) {
	t.next, t.lost = min(t.next, h.Value), true
}

// up restores the heap after h[i] was added at its end.
func (t *TopK) up(i int) {
	h := t.heap
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].Compare(h[i]) >= 0 {
			return
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
}

// down restores the heap after h[i] was replaced by a better hit.
func (t *TopK) down(i int) {
	h := t.heap
	for {
		worst := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].Compare(h[worst]) > 0 {
				worst = child
			}
		}
		if worst == i {
			return
		}
		h[i], h[worst] = h[worst], h[i]
		i = worst
	}
}
