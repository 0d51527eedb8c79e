package doctor

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/internal/platform/config"
)

// resolveTime bounds the question to the name server. A server on this machine needs some milliseconds.
const resolveTime = 2 * time.Second

// machine is what doctor examines besides the peer.
type machine interface {
	// writable reports whether a directory accepts files. missing: it does not exist, and a parent accepts it.
	writable(dir string) (missing bool, err error)
	// free is the space for a directory on its disk, in bytes. Errors: Unsupported on systems that do not tell.
	free(dir string) (uint64, error)
	// open opens a port and closes it again.
	open(network, address string) error
	// resolves reports whether a name server answers at an address.
	resolves(address string) error
}

// thisMachine is the machine of this process.
type thisMachine struct{}

func (thisMachine) writable(dir string) (missing bool, err error) {
	dir, missing = existing(dir)
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return missing, err
	}
	return missing, errors.Join(f.Close(), os.Remove(f.Name()))
}

// existing is a directory or, if it is missing, the parent that exists.
func existing(dir string) (found string, missing bool) {
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir, missing
		}
		missing, dir = true, filepath.Dir(dir)
	}
}

func (thisMachine) free(dir string) (uint64, error) {
	dir, _ = existing(dir)
	return diskFree(dir)
}

// resolves sends one question. Each answer counts, a refusal too.
func (thisMachine) resolves(address string) error {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(config.Default().DNSDomain[0]), dns.TypeSOA)
	_, _, err := (&dns.Client{Timeout: resolveTime}).Exchange(q, address)
	return err
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
