//go:build !unix

package guard

import (
	"os/exec"
	"syscall"
)

func childAttributes() *syscall.SysProcAttr { return nil }

// terminate and kill are the same here, and end only the process itself.
func (p *Child) terminate() { _ = p.cmd.Process.Kill() }
func (p *Child) kill()      { _ = p.cmd.Process.Kill() }

func exitStatus(e *exec.ExitError) int { return e.ExitCode() }
