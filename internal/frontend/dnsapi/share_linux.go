package dnsapi

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// shares reports whether the system distributes clients among sockets with the same address.
const shares = true

// share lets several sockets of this process have one address. TCP ports stay exclusive, so that two
// daemons do not take each other's questions.
func share(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	if err != nil {
		return err
	}
	return failed
}
