package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
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

// ticksPerSecond is the unit of proc_pid_stat(5) on all systems that Go supports.
const ticksPerSecond = 100

// used reads the times of proc_pid_stat(5) and wchar of proc_pid_io(5), which counts bytes of files, pipes and TCP.
func used(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	_, rest, _ := bytes.Cut(stat, []byte(") ")) // the name may contain spaces
	fields := bytes.Fields(rest)
	if len(fields) < 13 {
		return Usage{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var u Usage
	for _, f := range fields[11:13] { // utime and stime
		ticks, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return Usage{}, err
		}
		u.CPU += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return Usage{}, err
	}
	for line := range bytes.Lines(io) {
		if value, ok := bytes.CutPrefix(line, []byte("wchar: ")); ok {
			u.Written, err = strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
			return u, err
		}
	}
	return Usage{}, fmt.Errorf("/proc/%d/io has no wchar", pid)
}
