//go:build !unix

package cli

import (
	"os/exec"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return nil }

// terminate and kill are one here, and reach the command alone.
func (c *child) terminate() { _ = c.cmd.Process.Kill() }
func (c *child) kill()      { _ = c.cmd.Process.Kill() }

func exitStatus(e *exec.ExitError) int { return e.ExitCode() }
