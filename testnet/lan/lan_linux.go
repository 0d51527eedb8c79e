package lan

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/blackhole/blackhole/pkg/fault"
)

// New builds a LAN of n hosts, at most Most. Errors: Unsupported without the permission or
// without ip(8).
func New(n int) (*LAN, error) {
	const op = "lan.New"
	if n < 1 || n > Most {
		return nil, fault.Wrap(op, fault.Invalidf("hosts", n, "must be 1 to %d", Most))
	}
	middle, err := newSpace()
	if err != nil {
		return nil, fault.New(op, fault.Unsupported, "no network namespaces: %w", err)
	}
	l := &LAN{middle: middle}
	if err := l.wire(n); err != nil {
		l.Close()
		return nil, fault.New(op, fault.Unsupported, "%w", err)
	}
	return l, nil
}

// wire joins the hosts by a bridge.
func (l *LAN) wire(n int) error {
	for _, c := range []string{"link add br0 type bridge", "link set br0 up"} {
		if err := l.middle.ip(strings.Fields(c)...); err != nil {
			return err
		}
	}
	for i := range n {
		s, err := newSpace()
		if err != nil {
			return err
		}
		h := &Host{IP: address(i), space: s}
		l.Hosts = append(l.Hosts, h)
		if err := l.plug(h, i); err != nil {
			return err
		}
	}
	return nil
}

// plug connects a host: a pair of devices, one end in the host and one in the bridge.
func (l *LAN) plug(h *Host, i int) error {
	port := fmt.Sprintf("port%d", i)
	// The host creates the pair and passes one end to the descriptor of the bridge's namespace.
	at := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.middle.file.Fd())
	for _, c := range []string{
		"link set lo up",
		"link add eth0 type veth peer name " + port + " netns " + at,
		"link set eth0 up",
		"addr add " + h.IP + "/24 dev eth0",
	} {
		if err := h.ip(strings.Fields(c)...); err != nil {
			return err
		}
	}
	return l.middle.ip("link", "set", port, "master", "br0", "up")
}

func (h *Host) ip(args ...string) error { return h.space.ip(args...) }

// space is a network namespace, held open.
type space struct{ file *os.File }

// newSpace creates an empty namespace on a thread that enters it for a moment.
func newSpace() (*space, error) {
	var s space
	err := abroad(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() (err error) {
		s.file, err = here()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &s, nil
}

func here() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// do runs f on a thread in the namespace.
func (s *space) do(f func() error) error {
	return abroad(func() error { return unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET) }, f)
}

// abroad runs f on a thread in another namespace and brings the thread back. Later work runs on
// the same thread, since processes started by f may depend on it.
func abroad(leave, f func() error) error {
	runtime.LockOSThread()
	home, err := here()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	if err := leave(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	failed := f()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		panic("lan: cannot return from a network namespace: " + err.Error()) // a thread in the wrong namespace would corrupt all later work
	}
	runtime.UnlockOSThread()
	return failed
}

func (s *space) ip(args ...string) error {
	return s.do(func() error {
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			return fault.New("lan.ip", fault.Unavailable, "ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

func (s *space) close() { _ = s.file.Close() }
