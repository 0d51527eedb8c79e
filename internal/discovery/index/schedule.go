package index

// dueQueue is a binary min-heap of entries by due time. Entries store their position, so that
// removal and changes take logarithmic time.
type dueQueue struct {
	*arena
	heap     []uint32
	outlived map[uint32]int64 // expiry of the last known version, for entries whose freshest version expires earlier
}

// until returns the expiry of the last known version of a service.
func (s *dueQueue) until(e *entry) int64 {
	if until, ok := s.outlived[e.id]; ok {
		return until
	}
	return nanos(e.record.Expires())
}

// plan sets the due time of e. until is the expiry of the last known version.
func (s *dueQueue) plan(e *entry, until int64) {
	e.due = nanos(e.record.Expires())
	if until > e.due {
		s.outlived[e.id] = until
	} else {
		delete(s.outlived, e.id)
	}
	if e.state() == remembered {
		e.due = until
	}
	s.fix(e)
}

// first returns the entry with the earliest due time, or nil.
func (s *dueQueue) first() *entry {
	if len(s.heap) == 0 {
		return nil
	}
	return s.at(s.heap[0])
}

func (s *dueQueue) add(e *entry) {
	s.heap = append(s.heap, e.id)
	s.up(e, len(s.heap)-1)
}

// remove deletes e. The queue must contain e.
func (s *dueQueue) remove(e *entry) {
	delete(s.outlived, e.id)
	i, last := int(e.heap), len(s.heap)-1
	moved := s.at(s.heap[last])
	s.heap = s.heap[:last]
	if i != last {
		s.set(i, moved)
		s.fix(moved)
	}
}

// fix restores the order after a change of e.due.
func (s *dueQueue) fix(e *entry) {
	s.up(e, int(e.heap))
	s.down(e, int(e.heap))
}

// up moves the hole at i towards the root, as far as e belongs.
func (s *dueQueue) up(e *entry, i int) {
	for i > 0 {
		parent := (i - 1) / 2
		above := s.at(s.heap[parent])
		if above.due <= e.due {
			break
		}
		s.set(i, above)
		i = parent
	}
	s.set(i, e)
}

// down moves the hole at i towards the leaves, as far as e belongs.
func (s *dueQueue) down(e *entry, i int) {
	for {
		child := 2*i + 1
		if child >= len(s.heap) {
			break
		}
		below := s.at(s.heap[child])
		if child+1 < len(s.heap) {
			if right := s.at(s.heap[child+1]); right.due < below.due {
				below, child = right, child+1
			}
		}
		if below.due >= e.due {
			break
		}
		s.set(i, below)
		i = child
	}
	s.set(i, e)
}

func (s *dueQueue) set(i int, e *entry) {
	s.heap[i] = e.id
	e.heap = uint32(i)
}
