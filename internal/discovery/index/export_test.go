package index

// NewInline is New with a limit on inline merges, so that tests see incremental merges with few
// records.
func NewInline(c Config, rows int) *Index {
	x := New(c)
	x.shards.inlineRows = rows
	return x
}

// FeedSize is the number of changes that an index keeps.
const FeedSize = feedSize

// Publish adds a change without a record, as cheap as tests of thousands need.
func Publish(x *Index) { x.feed.publish(Added, nil, nil) }
