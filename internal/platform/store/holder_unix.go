//go:build unix

package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// Holder returns the process that has the database of a folder open, as far as the system tells; 0: none.
func Holder(dir string) int {
	f, err := os.OpenFile(dir+"/LOCK", os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer f.Close() // this process holds no lock of the file: closing would end it
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if unix.FcntlFlock(f.Fd(), unix.F_GETLK, &l) != nil || l.Type == unix.F_UNLCK {
		return 0
	}
	return int(l.Pid)
}
