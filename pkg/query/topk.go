package query

import (
	"cmp"
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/records"
)

// Hit is one match with its rank value (Plan.Value).
type Hit struct {
	Record *records.Record
	Value  float64 // smaller is better; never NaN
}

// Compare is negative if a ranks before b: by value, then by record name. Only versions of one
// service are equal.
func (a Hit) Compare(b Hit) int {
	if c := cmp.Compare(a.Value, b.Value); c != 0 {
		return c
	}
	return a.Record.Name().Compare(b.Record.Name())
}

// TopK keeps the best k hits of a stream in O(k) memory. The order of the stream has no
// influence on the result. TopK is not safe for concurrent use.
type TopK struct {
	k    int
	heap []Hit   // at most k, the worst first: a max-heap under Compare
	next float64 // least value of all dropped hits, +Inf before the first
	lost bool    // whether any hit was dropped
}

// NewTopK returns an empty TopK. A k below 1 keeps no hits.
func NewTopK(k int) *TopK {
	return &TopK{k: max(0, k), next: math.Inf(1)}
}

// Offer adds the next hit of the stream. Each service may occur once.
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

// Worst returns the last of k kept hits, or false for fewer hits. Later hits after Worst are
// dropped, so that a reader may skip a source with only such hits.
func (t *TopK) Worst() (Hit, bool) {
	if t.k == 0 || len(t.heap) < t.k {
		return Hit{}, false
	}
	return t.heap[0], true
}

// Next returns the rank value of the best dropped hit, or false before the first.
func (t *TopK) Next() (float64, bool) { return t.next, t.lost }

// Sorted returns the kept hits, best first. The caller owns the result.
func (t *TopK) Sorted() []Hit {
	hits := slices.Clone(t.heap)
	slices.SortFunc(hits, Hit.Compare)
	return hits
}

func (t *TopK) drop(h Hit) {
	t.next, t.lost = min(t.next, h.Value), true
}

// up restores the heap after an append of h[i].
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

// down restores the heap after a replacement of h[i] by a better hit.
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
