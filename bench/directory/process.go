package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	serving = 60 * time.Second      // from a start to the first answer
	asking  = 50 * time.Millisecond // between two questions whether it answers
	grace   = 10 * time.Second      // from the interrupt to the kill
)

// build compiles a command.
func build(ctx context.Context, to, what string) error {
	out, err := exec.CommandContext(ctx, "go", "build", "-o", to, what).CombinedOutput()
	if err != nil {
		return fault.New("build", fault.Unavailable, "%s: %w\n%s", what, err, out)
	}
	return nil
}

// process is a peer that can be ended, paused and started again as it was.
type process struct {
	binary string
	args   []string
	env    []string // beside this process's own
	log    io.Writer

	cmd    *exec.Cmd
	exited chan struct{} // closed when it is gone
}

func (p *process) start() error {
	p.cmd = exec.Command(p.binary, p.args...)
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = orphanless()
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return fault.As("start", fault.Unavailable, err)
	}
	exited, cmd := make(chan struct{}), p.cmd
	p.exited = exited
	go func() { // ends with the process
		defer close(exited)
		_ = cmd.Wait() // only that it is gone matters
	}()
	return nil
}

// runs reports whether the process is there.
func (p *process) runs() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill is as a crash.
func (p *process) kill() {
	if p.runs() {
		_ = p.cmd.Process.Kill() // it may be gone already
		<-p.exited
	}
}

// pause has the process stand still, and resume go on.
func (p *process) pause() error  { return p.signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) error {
	return fault.As("signal", fault.Unavailable, p.cmd.Process.Signal(s))
}

func (p *process) stop() {
	if !p.runs() {
		return
	}
	_ = p.signal(syscall.SIGCONT)          // it may be paused
	_ = p.cmd.Process.Signal(os.Interrupt) // it may be gone already
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-p.exited:
	case <-patience.C:
		p.kill()
	}
}

// spent is the processor time that processes have had together, in steps of 10 ms; 0 on other systems than Linux.
func spent(all ...*process) (sum time.Duration) {
	for _, p := range all {
		if !p.runs() {
			continue
		}
		sum += child.Spent(p.cmd.Process.Pid)
	}
	return sum
}

// load is the load average of the last minute.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
