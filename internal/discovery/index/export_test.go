package index

// NewSwift is New for tests that want large merges from few records: those of more rows
// than given are made bit by bit.
func NewSwift(c Config, rows int) *Index {
	x := New(c)
	x.shards.swift = rows
	return x
}
