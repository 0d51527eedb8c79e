package cli

import "syscall"

// attributes put a command into a process group of its own, and have it die with us: nobody
// would watch over its lock.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
