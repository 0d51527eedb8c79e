//go:build !linux

package process

import "github.com/blackhole/blackhole/pkg/fault"

// LimitFiles fails with Unsupported: other systems set no limits of running processes.
func (*Process) LimitFiles(uint64) (restore func() error, err error) {
	return nil, fault.New("process.LimitFiles", fault.Unsupported, "limits of running processes are of Linux")
}

// LimitMemory fails with Unsupported, as LimitFiles.
func (*Process) LimitMemory(uint64) (restore func() error, err error) {
	return nil, fault.New("process.LimitMemory", fault.Unsupported, "limits of running processes are of Linux")
}
