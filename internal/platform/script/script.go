// Package script runs commands that the settings of this peer name. What others say reaches a command on its standard
// input or in variables, never as the command itself or its arguments.
package script

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// grace bounds the end of a killed command, and the wait for children that keep its output open.
const grace = 500 * time.Millisecond

// Result is how a command ended by itself.
type Result struct {
	Code int
	// What it wrote on standard output and standard error: of a longer text the bound, and one byte more.
	Out, Err []byte
}

// Run runs a command to its end. The end of ctx kills its whole process group. The command has PATH and env as its
// environment, which may contain secrets otherwise, and in as its standard input. With a bound of 0 it has no
// standard streams at all. Errors: Timeout and Canceled by ctx; Unavailable for a command that does not start, or
// whose children keep its output open after its end.
func Run(ctx context.Context, argv, env []string, in []byte, bound int) (Result, error) {
	const op = "script.Run"
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(env[:len(env):len(env)], "PATH="+os.Getenv("PATH"))
	cmd.Dir = os.TempDir()
	cmd.WaitDelay = grace
	ownGroup(cmd)
	out, problems := text{most: bound + 1}, text{most: bound + 1}
	if bound > 0 {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &problems
	}
	err := cmd.Run()
	var exited *exec.ExitError
	switch {
	case ctx.Err() != nil && err != nil:
		return Result{}, fault.Wrap(op, ctx.Err())
	case errors.As(err, &exited) && exited.Exited():
		err = nil
	case errors.Is(err, exec.ErrWaitDelay):
		_ = cmd.Cancel() // its children
		err = errors.New("a process that it started keeps its output open")
	}
	return Result{cmd.ProcessState.ExitCode(), out.kept, problems.kept}, fault.As(op, fault.Unavailable, err)
}

// text keeps the begin of what is written, and swallows the rest, so that the writer never waits.
type text struct {
	kept []byte
	most int
}

// Write implements io.Writer.
func (t *text) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p[:min(len(p), t.most-len(t.kept))]...)
	return len(p), nil
}
