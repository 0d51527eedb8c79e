package cli

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// machine is what doctor examines besides the peer.
type machine interface {
	// writable reports whether a directory accepts files. missing: it does not exist, and a parent accepts it.
	writable(dir string) (missing bool, err error)
	// open opens a port and closes it again.
	open(network, address string) error
}

// thisMachine is the machine of this process.
type thisMachine struct{}

func (thisMachine) writable(dir string) (missing bool, err error) {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		missing, dir = true, filepath.Dir(dir)
	}
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return missing, err
	}
	return missing, errors.Join(f.Close(), os.Remove(f.Name()))
}

func (thisMachine) open(network, address string) error {
	if network == "udp" {
		c, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	return l.Close()
}
