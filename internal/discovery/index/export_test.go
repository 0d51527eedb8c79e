package index

import "strings"

// NewInline is New with a limit on inline merges, so that tests see incremental merges with few
// records.
func NewInline(c Config, rows int) *Index {
	x := New(c)
	x.shards.inlineRows = rows
	return x
}

// Hashes counts the cells that an index finds by their hash, and their kinds.
func Hashes(x *Index) int { return len(x.shards.hashes.cells) + len(x.shards.hashes.kinds) }

// FeedSize is the number of changes that an index keeps.
const FeedSize = feedSize

// Publish adds a change without a record, as cheap as tests of thousands need.
func Publish(x *Index) { x.feed.publish(Added, nil, nil) }

// Stats counts the contents of an index.
type Stats struct {
	Live       int   // live records
	Bytes      int64 // memory of the live records
	MaxBytes   int64 // limit of Bytes
	Remembered int   // tombstones and expired records kept against older versions
	Providers  int   // with live or remembered records
	Types      int   // with live records that this version can use
}

// Stats returns the current numbers.
func (x *Index) Stats() (s Stats) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.shards.byType.Range(func(kind, _ any) bool {
		if !strings.HasPrefix(kind.(string), beyond) {
			s.Types++
		}
		return true
	})
	s.Live, s.Remembered, s.Providers = x.rankings[live].total, x.rankings[remembered].total, len(x.providers)
	s.Bytes, s.MaxBytes = x.rankings[live].bytes, x.config.maxBytes(live)
	return s
}
