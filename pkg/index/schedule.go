package index

// schedule is a binary min-heap of entries by due, each of which knows its place: the
// next to lapse is found at once, and any can move in logarithmic time.
type schedule struct{ heap []*entry }

// first is the entry due first, or nil.
func (s *schedule) first() *entry {
	if len(s.heap) == 0 {
		return nil
	}
	return s.heap[0]
}

func (s *schedule) add(e *entry) {
	s.heap = append(s.heap, e)
	s.up(e, len(s.heap)-1)
}

// remove takes out e, which must be in s.
func (s *schedule) remove(e *entry) {
	i, last := int(e.heap), len(s.heap)-1
	moved := s.heap[last]
	s.heap[last] = nil
	s.heap = s.heap[:last]
	if i != last {
		moved.heap = int32(i)
		s.heap[i] = moved
		s.fix(moved)
	}
}

// fix restores the order after e.due changed.
func (s *schedule) fix(e *entry) {
	s.up(e, int(e.heap))
	s.down(e, int(e.heap))
}

// up sinks the hole at i towards the root until e fits.
func (s *schedule) up(e *entry, i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if s.heap[parent].due <= e.due {
			break
		}
		s.set(i, s.heap[parent])
		i = parent
	}
	s.set(i, e)
}

// down sinks the hole at i towards the leaves until e fits.
func (s *schedule) down(e *entry, i int) {
	for {
		child := 2*i + 1
		if child >= len(s.heap) {
			break
		}
		if child+1 < len(s.heap) && s.heap[child+1].due < s.heap[child].due {
			child++
		}
		if s.heap[child].due >= e.due {
			break
		}
		s.set(i, s.heap[child])
		i = child
	}
	s.set(i, e)
}

func (s *schedule) set(i int, e *entry) {
	s.heap[i] = e
	e.heap = int32(i)
}
