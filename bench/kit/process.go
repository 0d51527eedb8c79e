package kit

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// grace is the time from SIGINT to SIGKILL.
const grace = 10 * time.Second

// Build compiles a command from a directory of its module. Errors: Unavailable, with the message
// of the compiler.
func Build(ctx context.Context, dir, to, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, what)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fault.New("kit.Build", fault.Unavailable, "%s: %w\n%s", what, err, out)
	}
	return nil
}

// Process is a server that can end and start again. On Linux it ends with this process in every
// case. Start must not run beside another method.
type Process struct {
	Binary string
	Args   []string
	Env    []string // added to the environment of this process
	Log    io.Writer

	cmd    *exec.Cmd
	exited chan struct{} // closed after its end
}

// Start starts a stopped process. Errors: Unavailable.
func (p *Process) Start() error {
	cmd, exited := exec.Command(p.Binary, p.Args...), make(chan struct{}) //nolint:gosec // built by or given to the measuring program
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	cmd.SysProcAttr = orphanless()
	if err := cmd.Start(); err != nil {
		return fault.As("kit.Start", fault.Unavailable, err)
	}
	p.cmd, p.exited = cmd, exited
	go func() { // ends with the process
		defer close(exited)
		_ = cmd.Wait() // only the end matters
	}()
	return nil
}

// Runs reports whether the process runs.
func (p *Process) Runs() bool {
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

// ID is the id of the running or last process; 0 before the first start.
func (p *Process) ID() int {
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Signal sends a signal to the running process. Errors: Unavailable.
func (p *Process) Signal(s os.Signal) error {
	return fault.As("kit.Signal", fault.Unavailable, p.cmd.Process.Signal(s))
}

// Kill ends the process like a crash, and waits.
func (p *Process) Kill() {
	if p.Runs() {
		_ = p.cmd.Process.Kill() // it may have ended already
		<-p.exited
	}
}

// Stop interrupts the process, waits for its end, and kills it after 10 s.
func (p *Process) Stop() {
	if !p.Runs() {
		return
	}
	_ = p.Signal(os.Interrupt) // it may have ended already
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-p.exited:
	case <-patience.C:
		p.Kill()
	}
}

// Spent returns the processor time of the process, like the function Spent; 0 while stopped.
func (p *Process) Spent() time.Duration {
	if !p.Runs() {
		return 0
	}
	return Spent(p.ID())
}

// Load is the load average of the last minute; "?" on systems other than Linux.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
