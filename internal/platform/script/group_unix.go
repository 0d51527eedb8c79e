//go:build unix

package script

import (
	"os/exec"
	"syscall"
)

// ownGroup puts a command into a process group of its own, which is what gets killed.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
