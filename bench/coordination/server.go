package main

import (
	"time"

	"github.com/blackhole/blackhole/bench/kit"
)

const (
	serving = 60 * time.Second       // from a start to the first answer of all servers
	asking  = 100 * time.Millisecond // between two attempts
)

// spent returns the processor time of processes together.
func spent(all []*kit.Process) (sum time.Duration) {
	for _, p := range all {
		sum += p.Spent()
	}
	return sum
}
