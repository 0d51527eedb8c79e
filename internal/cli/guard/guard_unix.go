//go:build unix

package guard

import (
	"os/exec"
	"reflect"
	"syscall"
)

// childAttributes starts a child in its own process group. Where the system supports it
// (Linux, FreeBSD), the child dies with this process, which watches over its lock.
func childAttributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if f := reflect.ValueOf(attr).Elem().FieldByName("Pdeathsig"); f.IsValid() {
		f.SetInt(int64(syscall.SIGKILL))
	}
	return attr
}

// terminate asks the process group to end.
func (p *Child) terminate() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM) }

// kill ends the process group.
func (p *Child) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// exitStatus is the exit code in the convention of shells.
func exitStatus(e *exec.ExitError) int {
	if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return e.ExitCode()
}
