// Package heap provides an indexed binary heap: items know their position, so
// that Fix and Remove take logarithmic time without a search.
package heap

import "container/heap"

// Heap is a min-heap. An item belongs to at most one Heap at a time and its
// order changes only together with Fix or Init. The zero value is unusable; see
// New. A Heap is not safe for concurrent use.
type Heap[T any] struct{ array array[T] }

// New returns an empty heap ordered by less. A total order makes the sequence
// of Min deterministic. The position of an item points to an int that only the
// heap writes: the item's index, or -1 after Remove.
func New[T any](less func(a, b T) bool, position func(T) *int) *Heap[T] {
	return &Heap[T]{array[T]{less: less, position: position}}
}

// Len returns the number of items.
func (h *Heap[T]) Len() int { return h.array.Len() }

// Items returns all items, the least first and the others in no useful order.
// The slice belongs to the heap and is valid until the next change.
func (h *Heap[T]) Items() []T { return h.array.items }

// Min returns the least item, or false from an empty heap.
func (h *Heap[T]) Min() (T, bool) {
	if h.Len() == 0 {
		var zero T
		return zero, false
	}
	return h.array.items[0], true
}

// Init replaces the content by items, in any order, in linear time. The heap
// owns the slice from then on.
func (h *Heap[T]) Init(items []T) {
	h.array.items = items
	for i, item := range items {
		*h.array.position(item) = i
	}
	heap.Init(&h.array)
}

// Push adds an item.
func (h *Heap[T]) Push(item T) { heap.Push(&h.array, item) }

// Fix restores the order after a change of item.
func (h *Heap[T]) Fix(item T) { heap.Fix(&h.array, *h.array.position(item)) }

// Remove takes item out of the heap.
func (h *Heap[T]) Remove(item T) {
	heap.Remove(&h.array, *h.array.position(item))
	*h.array.position(item) = -1
}

// array is the content for package container/heap.
type array[T any] struct {
	less     func(a, b T) bool
	position func(T) *int
	items    []T
}

// Len implements heap.Interface.
func (a *array[T]) Len() int { return len(a.items) }

// Less implements heap.Interface.
func (a *array[T]) Less(i, j int) bool { return a.less(a.items[i], a.items[j]) }

// Swap implements heap.Interface.
func (a *array[T]) Swap(i, j int) {
	a.items[i], a.items[j] = a.items[j], a.items[i]
	*a.position(a.items[i]), *a.position(a.items[j]) = i, j
}

// Push implements heap.Interface.
func (a *array[T]) Push(item any) {
	a.items = append(a.items, item.(T))
	*a.position(item.(T)) = len(a.items) - 1
}

// Pop implements heap.Interface.
func (a *array[T]) Pop() any {
	var zero T
	last := len(a.items) - 1
	item := a.items[last]
	a.items[last], a.items = zero, a.items[:last]
	return item
}
