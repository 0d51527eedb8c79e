package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

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
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(b, []byte(") "))
	fields := strings.Fields(string(rest))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64) // 0 for what is no number
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
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

// ports are some that are free now.
func ports(n int) ([]string, error) {
	var all []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fault.As("ports", fault.Unavailable, err)
		}
		defer l.Close() // held until all are found
		all = append(all, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return all, nil
}

// until asks until there is no objection any more.
func until(ctx context.Context, limit time.Duration, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(asking)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New("until", fault.Timeout, "%s: not within %v: %w", what, limit, err)
		}
	}
}

// rest waits.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fault.Wrap("rest", ctx.Err())
	}
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
