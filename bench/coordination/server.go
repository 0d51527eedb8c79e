package main

import (
	"time"

	"github.com/blackhole/blackhole/bench/child"
)

const (
	serving = 60 * time.Second       // from a start to the first answer of all
	asking  = 100 * time.Millisecond // between two questions whether all answer
)

// spent is the processor time that processes have had together.
func spent(all []*child.Process) (sum time.Duration) {
	for _, p := range all {
		sum += p.Spent()
	}
	return sum
}
