package main

import (
	"syscall"
	"time"

	"github.com/blackhole/blackhole/bench/child"
)

const (
	serving = 60 * time.Second      // from a start to the first answer
	asking  = 50 * time.Millisecond // between two questions whether it answers
)

// process is a peer that can be paused, too.
type process struct{ child.Process }

// pause has the process stand still, and resume go on.
func (p *process) pause() error  { return p.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.Signal(syscall.SIGCONT) }

func (p *process) stop() {
	if p.Runs() {
		_ = p.resume() // it may be paused, or gone already
	}
	p.Stop()
}

// spent is the processor time that processes have had together, in steps of 10 ms; 0 on other systems than Linux.
func spent(all ...*process) (sum time.Duration) {
	for _, p := range all {
		sum += p.Spent()
	}
	return sum
}
