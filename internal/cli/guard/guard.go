// Package guard runs a command of the user, and ends it with everything that it started before another client can hold
// its lock.
package guard

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Times in the life of a child process that runs under a lock.
const (
	checkInterval = 250 * time.Millisecond // between two looks at the lock
	killDelay     = 250 * time.Millisecond // from SIGTERM to SIGKILL after the lock was lost
	outputDelay   = 2 * time.Second        // from the end of the process to the end of its output
)

// Child is a running command of the user.
type Child struct {
	cmd   *exec.Cmd
	guard *os.File      // deadlines for the guardian; nil without one
	done  chan struct{} // closed after the end of the process
	err   error         // how the process ended; valid after done
}

// Check reports a missing program with the exit code of shells. An empty command is valid.
func Check(command []string) error {
	if len(command) == 0 {
		return nil
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return exit.With(127, fault.New("", fault.NotFound, "%w", err))
	}
	return nil
}

// Start starts a command with additional environment variables.
func Start(c *term.Console, command []string, environ ...string) (*Child, error) {
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // the user's own command
	cmd.SysProcAttr = childAttributes()
	return launch(c, cmd, environ)
}

// StartGuarded starts a command that must not outlive its lock, if the system allows it with a guardian.
func StartGuarded(c *term.Console, command []string, environ ...string) (*Child, error) {
	c.Settle()
	cmd, guard, err := guarded(command)
	if err != nil {
		return nil, exit.With(126, fault.New("", fault.Internal, "%s: %w", command[0], err))
	}
	p, err := launch(c, cmd, environ)
	for _, f := range cmd.ExtraFiles {
		err = errors.Join(err, f.Close()) // the guardian has its own
	}
	if err != nil {
		return nil, errors.Join(err, guard.Close())
	}
	p.guard = guard
	return p, nil
}

// launch starts a process. Its goroutine keeps its thread: the parent that Pdeathsig watches is the thread that started
// the process.
func launch(c *term.Console, cmd *exec.Cmd, environ []string) (*Child, error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.Env, cmd.WaitDelay = append(append([]string{}, c.Environ...), environ...), outputDelay
	p, started := &Child{cmd: cmd, done: make(chan struct{})}, make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, exit.With(126, fault.New("", fault.Internal, "%s: %w", cmd.Path, err))
	}
	return p, nil
}

// extend tells the guardian how long the lock lasts. It does not wait for a frozen guardian.
func (p *Child) extend(left time.Duration) {
	if p.guard != nil {
		_ = p.guard.SetWriteDeadline(time.Now().Add(killDelay))
		_, _ = p.guard.Write(encodeDeadline(left))
	}
}

// end kills the process and, through its guardian, everything that it started.
func (p *Child) end() {
	if p.guard != nil {
		_ = p.guard.Close()
		select {
		case <-p.done:
			return
		case <-time.After(killDelay): // the guardian is frozen or late: what left its process group would survive it
			hunt(p.cmd.Process.Pid)
		}
	}
	p.kill() // the rest of the process group too
	<-p.done
}

// Wait waits for the end of the process. The end of ctx is passed on as SIGTERM.
func (p *Child) Wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		p.terminate()
		<-p.done
	}
	return p.result()
}

// Supervise waits for a process that runs under a lock, and ends it before the lock's
// deadline. It relies on the clock only: the notice of a loss may be late or missing.
func (p *Child) Supervise(ctx context.Context, held *client.Held, ttl time.Duration) error {
	grace := min(ttl/5, 2*time.Second) // less than the time left at an ordinary renewal
	interrupted, lost := ctx.Done(), held.Context().Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		left := held.Remaining()
		if left <= grace {
			return p.evict(held, left)
		}
		p.extend(left)
		timer.Reset(min(left-grace, checkInterval))
		select {
		case <-p.done:
			if held.Remaining() == 0 {
				return Lost(held) // this process was frozen, and the guardian has acted
			}
			return p.result()
		case <-interrupted:
			interrupted = nil // the process keeps its time while the lock lasts
			p.terminate()
		case <-lost:
			lost = nil
		case <-timer.C:
		}
	}
}

// evict ends a process before or after the loss of its lock.
func (p *Child) evict(held *client.Held, left time.Duration) error {
	err := Lost(held)
	p.terminate()
	if left -= left / 4; left == 0 { // the rest of the time is for the kill
		left = killDelay
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	p.end()
	return err
}

// result returns the outcome of an ended process.
func (p *Child) result() error {
	var failed *exec.ExitError
	switch {
	case p.err == nil, errors.Is(p.err, exec.ErrWaitDelay):
		return nil
	case errors.As(p.err, &failed):
		return exit.Child(exitStatus(failed))
	default:
		return fault.New("", fault.Internal, "the command: %w", p.err)
	}
}

// Lost is the error of a lost lock, with its cause.
func Lost(held *client.Held) error {
	why := "not renewed in time"
	if cause := held.Check(); cause != nil {
		why = exit.Message(cause)
	}
	return exit.With(exit.Lost, fault.New("", fault.Conflict, "%s: the lock is lost: %s", held.Name(), why))
}
