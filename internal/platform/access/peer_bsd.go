//go:build darwin || freebsd

package access

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// peerCredentials reads LOCAL_PEERCRED, the user of the peer at connect time.
func peerCredentials(fd int) peerAddr {
	c, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return peerAddr{}
	}
	return peerAddr{uid: int(c.Uid), known: true}
}

// limitSilence does nothing on this system: a blocked write ends a connection, once the system's buffers are full.
func limitSilence(net.Conn, time.Duration) {}

// userOf has no source on this system.
func userOf(net.Conn) *peerAddr { return nil }

// waiting is not asked on this system.
func waiting(net.Conn) bool { return false }
