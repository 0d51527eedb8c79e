package index

// NewInline is New for tests that want large merges from few records: those of more rows
// than given are made bit by bit.
func NewInline(c Config, rows int) *Index {
	x := New(c)
	x.shards.inlineRows = rows
	return x
}
