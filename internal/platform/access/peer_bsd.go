//go:build darwin || freebsd

package access

import "golang.org/x/sys/unix"

// peerCredentials reads LOCAL_PEERCRED, the user of the peer at connect time.
func peerCredentials(fd int) peerAddr {
	c, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return peerAddr{}
	}
	return peerAddr{uid: int(c.Uid), known: true}
}
