package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/blackhole/blackhole/bench/child"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	serving = 60 * time.Second       // from a start to the first answer
	asking  = 100 * time.Millisecond // between two questions whether it answers
	grace   = 10 * time.Second       // from the interrupt to the kill
)

// build compiles a command.
func build(ctx context.Context, to, what string) error {
	out, err := exec.CommandContext(ctx, "go", "build", "-o", to, what).CombinedOutput()
	if err != nil {
		return fault.New("build", fault.Unavailable, "%s: %w\n%s", what, err, out)
	}
	return nil
}

// process is a server.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it is gone
}

func launch(binary string, args, env []string, log io.Writer) (*process, error) {
	p := &process{cmd: exec.Command(binary, args...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = orphanless()
	if err := p.cmd.Start(); err != nil {
		return nil, fault.As("launch", fault.Unavailable, err)
	}
	go func() { // ends with the process
		defer close(p.exited)
		_ = p.cmd.Wait() // only that it is gone matters
	}()
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt) // it may be gone already
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-p.exited:
	case <-patience.C:
		_ = p.cmd.Process.Kill() // as above
		<-p.exited
	}
}

// spent is the processor time that the process has had, user and system, in steps of 10 ms; 0 on
// other systems than Linux.
func (p *process) spent() time.Duration {
	return child.Spent(p.cmd.Process.Pid)
}

// memory is what of a process is in memory, in bytes.
type memory struct {
	resident  int64
	anonymous int64 // of it, what no file backs
}

// memory is nothing on other systems than Linux.
func (p *process) memory() (m memory) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64) // 0 for what is no number
		switch name {
		case "VmRSS":
			m.resident = kib << 10
		case "RssAnon":
			m.anonymous = kib << 10
		}
	}
	return m
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
