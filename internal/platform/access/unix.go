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

// maxPath is the longest path, in bytes, that fits into a socket address on every system.
const maxPath = 103

// ListenUnix listens on a socket that only its owner may open (mode 0600). It makes a missing
// directory with mode 0700. A guard learns the user of the other process from its connections. It
// replaces the socket of a dead process. It fails with Exists for a live one and with Invalid for
// another file, both with the setting "unix".
func ListenUnix(path string) (net.Listener, error) {
	const op = "access.ListenUnix"
	if len(path) > maxPath {
		return nil, fault.Wrap(op, fault.Invalidf("unix", path, "must be at most %d bytes long: choose a shorter path", maxPath))
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
	// Until here the umask sets the mode. The guard checks the user of an early connection too.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fault.Wrap(op, fault.Invalidf("unix", path, "%w", errors.Join(err, l.Close())))
	}
	return unixListener{l}, nil
}

// clear removes the socket of a dead process.
func clear(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fault.Invalidf("unix", path, "%w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fault.Invalidf("unix", path, "belongs to another file: remove the file or choose a new path")
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		c.Close()
		return &fault.Error{Kind: fault.Exists, Field: "unix", Value: path, Err: errors.New("belongs to a running process: stop the process or choose a new path")}
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fault.Invalidf("unix", path, "exists but refuses connections: %w", err)
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

// unixConn has the credentials of its peer as the remote address, which wrappers of connections pass
// on.
type unixConn struct {
	net.Conn
	remote peerAddr
}

// RemoteAddr implements net.Conn.
func (c *unixConn) RemoteAddr() net.Addr { return c.remote }

// peerOf asks the kernel for the user that opened the connection.
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
