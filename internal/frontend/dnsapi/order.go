package dnsapi

import "math/rand/v2"

// order draws indexes without replacement, each with a probability proportional to its weight among the
// remaining ones (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006). Records
// without room in an answer are not drawn.
type order struct {
	rand *rand.Rand

	left  int
	index []int32
	key   []float64 // per index; the lowest is at the top of the heap. Unused with equal weights.
	heap  bool
}

// reset starts a draw of all records.
func (o *order) reset(records []record, uniform bool) {
	n := len(records)
	if len(o.index) != n { // otherwise any permutation is a valid start
		o.index = o.index[:0]
		for i := range n {
			o.index = append(o.index, int32(i))
		}
	}
	o.left, o.heap = n, !uniform
	if uniform {
		return
	}
	if cap(o.key) < n {
		o.key = make([]float64, n)
	}
	o.key = o.key[:n]
	for i := range records {
		o.key[i] = o.rand.ExpFloat64() / float64(max(records[i].weight, 1))
	}
	for i := n/2 - 1; i >= 0; i-- {
		o.down(i)
	}
}

// next draws an index. It returns false after the last one.
func (o *order) next() (i int32, ok bool) {
	if o.left == 0 {
		return 0, false
	}
	at := 0
	if !o.heap {
		at = o.rand.IntN(o.left)
	}
	o.left--
	i = o.index[at]
	o.index[at], o.index[o.left] = o.index[o.left], i
	if o.heap {
		o.down(0)
	}
	return i, true
}

func (o *order) down(i int) {
	for {
		child := 2*i + 1
		if child >= o.left {
			return
		}
		if right := child + 1; right < o.left && o.key[o.index[right]] < o.key[o.index[child]] {
			child = right
		}
		if o.key[o.index[i]] <= o.key[o.index[child]] {
			return
		}
		o.index[i], o.index[child] = o.index[child], o.index[i]
		i = child
	}
}
