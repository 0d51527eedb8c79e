package dnsapi

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// shares is whether several sockets can have one address, among which the system spreads clients.
const shares = true

// share lets a socket have an address with others of this process. TCP is not shared, so that two
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
