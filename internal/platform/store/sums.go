package store

import (
	"hash/fnv"

	"github.com/cockroachdb/pebble/v2"
)

// sums holds a checksum of each key with its value, and their sum: the checksum of the content.
type sums struct {
	of    map[string]uint64
	total uint64
}

func (s *sums) set(key string, value []byte) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	_, _ = h.Write([]byte{0}) // keys contain no zero byte
	_, _ = h.Write(value)
	s.remove(key)
	s.of[key] = h.Sum64()
	s.total += s.of[key]
}

func (s *sums) remove(key string) {
	s.total -= s.of[key]
	delete(s.of, key)
}

// apply adds the edits of a batch.
func (s *sums) apply(b *pebble.Batch) error {
	r := b.Reader()
	for {
		kind, key, value, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		if kind == pebble.InternalKeyKindDelete {
			s.remove(string(key))
		} else {
			s.set(string(key), value)
		}
	}
}
