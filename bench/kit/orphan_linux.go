package kit

import "syscall"

// orphanless makes the kernel end a process after its parent.
func orphanless() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
