package access

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// peerCredentials reads SO_PEERCRED, the user of the peer at connect time.
func peerCredentials(fd int) peerAddr {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return peerAddr{}
	}
	return peerAddr{uid: int(c.Uid), known: true}
}

// unsent bounds the bytes that the kernel takes for a connection and cannot send yet. Without it, the answers of silent
// readers are memory of the kernel, megabytes for each.
const unsent = 128 << 10

// limitSilence breaks a connection of TCP whose other end acknowledges nothing for d, or has no room for so long
// (TCP_USER_TIMEOUT, RFC 5482; tcp(7)).
func limitSilence(c net.Conn, d time.Duration) {
	sc, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := sc.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			// Without these, a blocked write ends the connection, later.
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
		})
	}
}

// waiting reports whether bytes of the other end wait to be read.
func waiting(c net.Conn) bool {
	sc, ok := c.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n > 0
}

// Sizes and offsets of struct inet_diag_req_v2 and inet_diag_msg (linux/inet_diag.h), behind a struct nlmsghdr.
const (
	diagRequest = unix.SizeofNlMsghdr + 56
	diagUser    = unix.SizeofNlMsghdr + 64
	diagInode   = diagUser + 4
)

// userOf returns the user of the process at the other end of a connection from this host, or nil. It asks the kernel for the
// socket with the addresses of the connection (sock_diag(7)), which takes some microseconds. A socket that its process has closed is of user 0
// there and has no inode: it is nobody's.
func userOf(c net.Conn) *peerAddr {
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	to, ok2 := c.LocalAddr().(*net.TCPAddr)
	if !ok || !ok2 || !from.IP.IsLoopback() {
		return nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	answer := make([]byte, 512)
	if unix.Sendto(fd, diagOf(from.AddrPort(), to.AddrPort()), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return nil
	}
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT) // the kernel answers within the request
	if err != nil || n < diagInode+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.SOCK_DIAG_BY_FAMILY || binary.NativeEndian.Uint32(answer[diagInode:]) == 0 {
		return nil
	}
	return &peerAddr{uid: int(binary.NativeEndian.Uint32(answer[diagUser:])), known: true}
}

// diagOf asks for the socket from one address to another.
func diagOf(from, to netip.AddrPort) []byte {
	m := make([]byte, diagRequest)
	binary.NativeEndian.PutUint32(m, diagRequest)
	binary.NativeEndian.PutUint16(m[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST)
	q := m[unix.SizeofNlMsghdr:]
	q[0], q[1] = unix.AF_INET, unix.IPPROTO_TCP
	if !from.Addr().Unmap().Is4() {
		q[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(q[4:], 1<<1) // TCP_ESTABLISHED
	binary.BigEndian.PutUint16(q[8:], from.Port())
	binary.BigEndian.PutUint16(q[10:], to.Port())
	copy(q[12:28], from.Addr().Unmap().AsSlice())
	copy(q[28:44], to.Addr().Unmap().AsSlice())
	for n := range 8 { // no cookie
		q[48+n] = 0xff
	}
	return m
}
