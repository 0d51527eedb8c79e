package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/blackhole/blackhole/pkg/fault"
)

// LimitFiles lets the process open only that many more descriptors. restore ends the limit, also after the process.
func (p *Process) LimitFiles(more uint64) (restore func() error, err error) {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		return nil, fault.As("process.LimitFiles", fault.Unavailable, err)
	}
	return p.limit(unix.RLIMIT_NOFILE, uint64(len(open))+more)
}

// LimitMemory lets the process map only that many more bytes. restore ends the limit, also after the process.
func (p *Process) LimitMemory(more uint64) (restore func() error, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return nil, fault.As("process.LimitMemory", fault.Unavailable, err)
	}
	_, after, _ := strings.Cut(string(status), "VmData:")
	kilobytes, err := strconv.ParseUint(strings.Fields(after + " 0")[0], 10, 64)
	if err != nil {
		return nil, fault.As("process.LimitMemory", fault.Unavailable, err)
	}
	return p.limit(unix.RLIMIT_DATA, kilobytes<<10+more)
}

// limit lowers a soft limit; see prlimit(2).
func (p *Process) limit(resource int, to uint64) (restore func() error, err error) {
	var before unix.Rlimit
	if err := unix.Prlimit(p.PID(), resource, nil, &before); err != nil {
		return nil, fault.As("process.limit", fault.Unavailable, err)
	}
	after := unix.Rlimit{Cur: min(to, before.Max), Max: before.Max}
	if err := unix.Prlimit(p.PID(), resource, &after, nil); err != nil {
		return nil, fault.As("process.limit", fault.Unavailable, err)
	}
	return func() error {
		if !p.Running() {
			return nil
		}
		return fault.As("process.limit", fault.Unavailable, unix.Prlimit(p.PID(), resource, &before, nil))
	}, nil
}
