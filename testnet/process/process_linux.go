package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// Orphanless puts the child into its own process group, so that Ctrl-C reaches it only through
// Stop. The kernel kills the child after the end of its parent thread, which in Go means the end
// of this process.
func Orphanless() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// resident reads VmRSS of proc_pid_status(5), given in units of 1024 bytes.
func resident(pid int) uint64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0 // the process ended
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			fields := bytes.Fields(value)
			if len(fields) == 0 {
				return 0
			}
			kb, _ := strconv.ParseUint(string(fields[0]), 10, 64) // 0 for an invalid number
			return kb << 10
		}
	}
	return 0
}
