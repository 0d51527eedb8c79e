package main

import (
	"syscall"
	"time"

	"github.com/blackhole/blackhole/bench/child"
)

const (
	serving = 60 * time.Second      // from a start to the first answer
	asking  = 50 * time.Millisecond // between two attempts
)

// process is a peer with pause and resume.
type process struct{ child.Process }

// pause stops the process, resume continues it.
func (p *process) pause() error  { return p.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.Signal(syscall.SIGCONT) }

func (p *process) stop() {
	if p.Runs() {
		_ = p.resume() // it may be paused, or ended already
	}
	p.Stop()
}

// spent returns the processor time of processes together, in steps of 10 ms; 0 on systems other
// than Linux.
func spent(all ...*process) (sum time.Duration) {
	for _, p := range all {
		sum += p.Spent()
	}
	return sum
}
