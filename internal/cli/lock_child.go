package cli

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Times in the life of a command that runs under a lock.
const (
	glance   = 250 * time.Millisecond // how often its lock is looked at
	lastWord = 250 * time.Millisecond // from SIGTERM to SIGKILL when the lock is gone already
	wakeOver = 2 * time.Second        // for its output to end when it has ended
)

// child is a command that runs.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how; after done
}

// start starts a command. Its goroutine keeps its thread: where the system kills a process
// whose parent dies (see attributes), the parent is the thread that started it.
func start(cmd *exec.Cmd) (*child, error) {
	c, started := &child{cmd: cmd, done: make(chan struct{})}, make(chan error)
	cmd.SysProcAttr, cmd.WaitDelay = attributes(), wakeOver
	go func() {
		runtime.LockOSThread()
		defer close(c.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
		}
	}()
	return c, <-started
}

// supervise runs a command while a lock is held. It trusts no one but the clock: whether or
// not anybody says that the lock is lost, the command is gone before the client's deadline.
func (a App) supervise(ctx context.Context, held *client.Held, want claim) error {
	cmd := exec.Command(want.command[0], want.command[1:]...) //nolint:gosec // what the user asked for
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	cmd.Env = a.environment(held, time.Now())
	c, err := start(cmd)
	if err != nil {
		return coded{126, fault.New("", fault.Internal, "%s: %w", want.command[0], err)}
	}
	grace := min(want.ttl/5, 2*time.Second) // less than what an ordinary renewal leaves
	interrupted, lost := ctx.Done(), held.Context().Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		left := held.Remaining()
		if left <= grace {
			return c.evict(held, left)
		}
		timer.Reset(min(left-grace, glance))
		select {
		case <-c.done:
			return c.ending()
		case <-interrupted:
			interrupted = nil // it ends as it likes, under the lock
			c.terminate()
		case <-lost:
			lost = nil
		case <-timer.C:
		}
	}
}

// evict ends a command whose lock is about to be lost, or is.
func (c *child) evict(held *client.Held, left time.Duration) error {
	err := lostLock(held)
	c.terminate()
	if left == 0 {
		left = lastWord
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	}
	c.kill() // what is left of its group too
	<-c.done
	return err
}

// ending gives the exit code of a command that has ended.
func (c *child) ending() error {
	var exit *exec.ExitError
	switch {
	case c.err == nil, errors.Is(c.err, exec.ErrWaitDelay):
		return nil
	case errors.As(c.err, &exit):
		return childExit(exitStatus(exit))
	default:
		return fault.New("", fault.Internal, "the command: %w", c.err)
	}
}
