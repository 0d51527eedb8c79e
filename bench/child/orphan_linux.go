package child

import "syscall"

// orphanless has the kernel end a process whose parent is gone.
func orphanless() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
