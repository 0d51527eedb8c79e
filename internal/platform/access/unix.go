package access

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxPath is what every system's socket addresses have room for.
const maxPath = 103

// ListenUnix listens on a socket that only its owner may open (mode 0600), in a directory that
// is made with mode 0700 where it is missing. Its connections tell a guard whose process is at
// the other end. A socket that nobody answers on any more is replaced; it fails with Exists
// when somebody does, and with Invalid when there is something else, both naming the setting
// "unix".
func ListenUnix(path string) (net.Listener, error) {
	const op = "access.ListenUnix"
	if len(path) > maxPath {
		return nil, fault.Wrap(op, fault.Invalidf("unix", path, "must be at most %d bytes", maxPath))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fault.Wrap(op, fault.Invalidf("unix", path, "%w", err))
	}
	if err := clear(path); err != nil {
		return nil, fault.Wrap(op, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fault.Wrap(op, fault.Invalidf("unix", path, "%w", err))
	}
	// Until here the mode is the umask's. Whoever came in between is told by its credentials.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fault.Wrap(op, fault.Invalidf("unix", path, "%w", errors.Join(err, l.Close())))
	}
	return unixListener{l}, nil
}

// clear removes the socket of a process that is gone.
func clear(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fault.Invalidf("unix", path, "%w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fault.Invalidf("unix", path, "is there already and no socket")
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		c.Close()
		return &fault.Error{Kind: fault.Exists, Field: "unix", Value: path, Err: errors.New("somebody listens there already")}
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fault.Invalidf("unix", path, "is there already and cannot be asked: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Invalidf("unix", path, "%w", err)
	}
	return nil
}

type unixListener struct{ net.Listener }

// Accept implements net.Listener.
func (l unixListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &unixConn{Conn: c, remote: peerOf(c)}, nil
}

// unixConn has the credentials of the peer as its remote address, which every wrapper of a
// connection passes on.
type unixConn struct {
	net.Conn
	remote peerAddr
}

// RemoteAddr implements net.Conn.
func (c *unixConn) RemoteAddr() net.Addr { return c.remote }

// peerOf asks the kernel who opened the connection. When it does not say, nobody is known.
func peerOf(c net.Conn) peerAddr {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return peerAddr{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return peerAddr{}
	}
	var p peerAddr
	if err := raw.Control(func(fd uintptr) { p = peerCredentials(int(fd)) }); err != nil {
		return peerAddr{}
	}
	return p
}
