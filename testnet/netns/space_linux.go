package netns

import (
	"encoding/hex"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Space is a network namespace, held open. Its methods are safe for concurrent use.
type Space struct{ file *os.File }

// NewSpace creates a namespace with a loopback device and nothing else. Callers must call Close.
// Error: Unsupported without the permission or without ip(8).
func NewSpace() (*Space, error) {
	const op = "netns.NewSpace"
	var s Space
	// A thread enters the namespace for a moment.
	err := abroad(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() (err error) {
		s.file, err = here()
		return err
	})
	if err != nil {
		return nil, fault.New(op, fault.Unsupported, "no network namespaces: %w", err)
	}
	if err := s.IP("link", "set", "lo", "up"); err != nil {
		s.Close()
		return nil, fault.New(op, fault.Unsupported, "%w", err)
	}
	return &s, nil
}

func here() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// Do runs f on a thread in the namespace: f dials, listens and starts processes there. Other
// goroutines started by f stay outside.
func (s *Space) Do(f func() error) error {
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
		panic("netns: cannot return from a network namespace: " + err.Error()) // a thread in the wrong namespace would corrupt all later work
	}
	runtime.UnlockOSThread()
	return failed
}

// IP runs ip(8) in the namespace.
func (s *Space) IP(args ...string) error { return s.Run("", "ip", args...) }

// Run runs a program in the namespace, with input as its standard input. It waits for the end.
// Error: Unavailable, with the output.
func (s *Space) Run(input, program string, args ...string) error {
	return s.Do(func() error {
		cmd := exec.Command(program, args...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fault.New("netns.Run", fault.Unavailable, "%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// Set sets a kernel parameter of the namespace, such as net/ipv4/ip_forward.
func (s *Space) Set(parameter, value string) error {
	return s.Do(func() error {
		return fault.As("netns.Set", fault.Unavailable, os.WriteFile(filepath.Join("/proc/sys", parameter), []byte(value), 0))
	})
}

// awaitLocal waits until packets to an IPv6 address of the namespace are accepted: the kernel adds its
// local route after the address, in the background. Error: Unavailable after 10 s.
func (s *Space) awaitLocal(a netip.Addr) error {
	if !a.Is6() {
		return nil
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var routes []byte
		err := s.Do(func() (err error) {
			routes, err = os.ReadFile("/proc/thread-self/net/ipv6_route")
			return err
		})
		if err != nil {
			return fault.As("netns.awaitLocal", fault.Unavailable, err)
		}
		if hasLocal(string(routes), a) {
			return nil
		}
	}
	return fault.New("netns.awaitLocal", fault.Unavailable, "%s has no local route", a)
}

// hasLocal looks for an address in the format of /proc/net/ipv6_route (net/ipv6/route.c): destination,
// its prefix length, source, its length, next hop, metric, reference count, uses, flags, device.
func hasLocal(routes string, a netip.Addr) bool {
	const flagLocal = 1 << 31 // RTF_LOCAL
	want := hex.EncodeToString(a.AsSlice())
	for line := range strings.Lines(routes) {
		fields := strings.Fields(line)
		if len(fields) != 10 || fields[0] != want || fields[1] != "80" {
			continue
		}
		if flags, err := strconv.ParseUint(fields[8], 16, 32); err == nil && flags&flagLocal != 0 {
			return true
		}
	}
	return false
}

// Close releases the namespace. It ends with its last process.
func (s *Space) Close() { _ = s.file.Close() }
