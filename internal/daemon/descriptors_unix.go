//go:build unix

package daemon

import "syscall"

// descriptors is the number of files and connections that this process may have open. Go raises it to the hard limit.
func descriptors() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return uint64(limit.Cur)
}
