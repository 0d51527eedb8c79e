//go:build unix

package cli

import (
	"os/exec"
	"syscall"
)

// terminate asks the command's process group to end.
func (c *child) terminate() { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGTERM) }

// kill ends the command's process group.
func (c *child) kill() { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }

// exitStatus is the exit code as shells have it.
func exitStatus(e *exec.ExitError) int {
	if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return e.ExitCode()
}
