package child

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// grace is from the interrupt to the kill.
const grace = 10 * time.Second

// Build compiles a command, as seen from a directory of the module that it is of. Errors: Unavailable, with what
// the compiler says.
func Build(ctx context.Context, dir, to, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, what)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fault.New("child.Build", fault.Unavailable, "%s: %w\n%s", what, err, out)
	}
	return nil
}

// Process is a server that can be ended and started again as it was. On Linux it ends with this process, however that
// ends. Start goes with no other method at a time.
type Process struct {
	Binary string
	Args   []string
	Env    []string // beside this process's own
	Log    io.Writer

	cmd    *exec.Cmd
	exited chan struct{} // closed when it is gone
}

// Start starts what does not run. Errors: Unavailable.
func (p *Process) Start() error {
	cmd, exited := exec.Command(p.Binary, p.Args...), make(chan struct{}) //nolint:gosec // what the measuring program built or was given
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	cmd.SysProcAttr = orphanless()
	if err := cmd.Start(); err != nil {
		return fault.As("child.Start", fault.Unavailable, err)
	}
	p.cmd, p.exited = cmd, exited
	go func() { // ends with the process
		defer close(exited)
		_ = cmd.Wait() // only that it is gone matters
	}()
	return nil
}

// Runs reports whether the process is there.
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

// ID is that of the process that runs, or ran last; 0 before it was ever started.
func (p *Process) ID() int {
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Signal sends a signal to the process that runs. Errors: Unavailable.
func (p *Process) Signal(s os.Signal) error {
	return fault.As("child.Signal", fault.Unavailable, p.cmd.Process.Signal(s))
}

// Kill ends the process as a crash does, and waits for that.
func (p *Process) Kill() {
	if p.Runs() {
		_ = p.cmd.Process.Kill() // it may be gone already
		<-p.exited
	}
}

// Stop interrupts the process, waits for its end, and kills it when that takes 10 s.
func (p *Process) Stop() {
	if !p.Runs() {
		return
	}
	_ = p.Signal(os.Interrupt) // it may be gone already
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-p.exited:
	case <-patience.C:
		p.Kill()
	}
}

// Spent is the processor time that the process has had, as of the function Spent; 0 when it does not run.
func (p *Process) Spent() time.Duration {
	if !p.Runs() {
		return 0
	}
	return Spent(p.ID())
}

// Load is the load average of the last minute; "?" on other systems than Linux.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
