// Package heap provides an indexed binary heap: items know their position, so
// that Fix and Remove take logarithmic time without a search.
package heap

// Heap is a min-heap. An item belongs to at most one Heap at a time and its
// order changes only together with Fix or Init. The zero value is unusable; see
// New. A Heap is not safe for concurrent use.
type Heap[T any] struct {
	less     func(a, b T) bool
	position func(T) *int
	items    []T
}

// New returns an empty heap ordered by less. A total order makes the sequence
// of Min deterministic. The position of an item points to an int that only the
// heap writes: the item's index, or -1 after Remove.
func New[T any](less func(a, b T) bool, position func(T) *int) *Heap[T] {
	return &Heap[T]{less: less, position: position}
}

// Len returns the number of items.
func (h *Heap[T]) Len() int { return len(h.items) }

// Items returns all items, the least first and the others in no useful order.
// The slice belongs to the heap and is valid until the next change.
func (h *Heap[T]) Items() []T { return h.items }

// Min returns the least item, or false from an empty heap.
func (h *Heap[T]) Min() (T, bool) {
	if len(h.items) == 0 {
		var zero T
		return zero, false
	}
	return h.items[0], true
}

// Init replaces the content by items, in any order, in linear time. The heap
// owns the slice from then on.
func (h *Heap[T]) Init(items []T) {
	h.items = items
	for i, item := range items {
		*h.position(item) = i
	}
	for i := len(items)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

// Push adds an item.
func (h *Heap[T]) Push(item T) {
	h.items = append(h.items, item)
	*h.position(item) = len(h.items) - 1
	h.up(len(h.items) - 1)
}

// Fix restores the order after a change of item.
func (h *Heap[T]) Fix(item T) {
	i := *h.position(item)
	if !h.down(i) {
		h.up(i)
	}
}

// Remove takes item out of the heap.
func (h *Heap[T]) Remove(item T) {
	i, last := *h.position(item), len(h.items)-1
	h.swap(i, last)
	var zero T
	h.items[last] = zero
	h.items = h.items[:last]
	if i < last && !h.down(i) {
		h.up(i)
	}
	*h.position(item) = -1
}

func (h *Heap[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(h.items[i], h.items[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

// down reports whether the item at i moved.
func (h *Heap[T]) down(i int) bool {
	start := i
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if right := child + 1; right < len(h.items) && h.less(h.items[right], h.items[child]) {
			child = right
		}
		if !h.less(h.items[child], h.items[i]) {
			break
		}
		h.swap(i, child)
		i = child
	}
	return i > start
}

func (h *Heap[T]) swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.position(h.items[i]), *h.position(h.items[j]) = i, j
}
