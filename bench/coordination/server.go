package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	serving = 60 * time.Second       // from a start to the first answer of all
	asking  = 100 * time.Millisecond // between two questions whether all answer
	grace   = 10 * time.Second       // from the interrupt to the kill
)

// build compiles a command.
func build(ctx context.Context, dir, to, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, what)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fault.New("build", fault.Unavailable, "%s: %w\n%s", what, err, out)
	}
	return nil
}

// server is a process that can be killed and started again as it was.
type server struct {
	binary string
	args   []string
	env    []string // beside this process's own
	log    io.Writer

	cmd    *exec.Cmd
	exited chan struct{} // closed when it is gone
}

func (s *server) start() error {
	s.cmd = exec.Command(s.binary, s.args...)
	s.cmd.Env = append(os.Environ(), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = orphanless()
	if err := s.cmd.Start(); err != nil {
		return fault.As("start", fault.Unavailable, err)
	}
	exited, cmd := make(chan struct{}), s.cmd
	s.exited = exited
	go func() { // ends with the process
		defer close(exited)
		_ = cmd.Wait() // only that it is gone matters
	}()
	return nil
}

// runs reports whether the process is there.
func (s *server) runs() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// kill is as a crash.
func (s *server) kill() {
	if s.runs() {
		_ = s.cmd.Process.Kill() // it may be gone already
		<-s.exited
	}
}

func (s *server) stop() {
	if !s.runs() {
		return
	}
	_ = s.cmd.Process.Signal(os.Interrupt) // as above
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-s.exited:
	case <-patience.C:
		s.kill()
	}
}

// spent is the processor time that processes have had together.
func spent(all []*server) (sum time.Duration) {
	for _, s := range all {
		if !s.runs() {
			continue
		}
		sum += child.Spent(s.cmd.Process.Pid)
	}
	return sum
}
