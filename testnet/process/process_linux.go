package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// orphanless puts the child into a process group of its own, so that Ctrl-C reaches it
// through Stop and not beside it, and has the kernel kill it when the thread that started
// it ends: with this process, for Go's threads otherwise stay.
func orphanless() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// resident reads VmRSS of proc_pid_status(5), given in units of 1024 bytes.
func resident(pid int) uint64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0 // gone meanwhile
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			fields := bytes.Fields(value)
			if len(fields) == 0 {
				return 0
			}
			kb, _ := strconv.ParseUint(string(fields[0]), 10, 64) // 0 for what is no number
			return kb << 10
		}
	}
	return 0
}
