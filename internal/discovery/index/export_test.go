package index

// NewInline is New with a limit on inline merges, so that tests see incremental merges with few
// records.
func NewInline(c Config, rows int) *Index {
	x := New(c)
	x.shards.inlineRows = rows
	return x
}
