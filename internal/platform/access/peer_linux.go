package access

import "golang.org/x/sys/unix"

// peerCredentials reads SO_PEERCRED, the user of the peer at connect time.
func peerCredentials(fd int) peerAddr {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return peerAddr{}
	}
	return peerAddr{uid: int(c.Uid), known: true}
}
