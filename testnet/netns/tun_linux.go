package netns

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/blackhole/blackhole/pkg/fault"
)

// openTUN creates a TUN device in a namespace. Each Read returns one IP packet that the host sends;
// each Write gives one to the host. The device ends with Close.
func openTUN(s *Space, name string) (device, error) {
	const op = "netns.openTUN"
	var fd int
	err := s.Do(func() (err error) { // the device belongs to the namespace of the thread that opens the file
		fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fault.New(op, fault.Unsupported, "/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fault.New(op, fault.Invalid, "device %q: %w", name, err)
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := s.Do(func() error { return unix.IoctlIfreq(fd, unix.TUNSETIFF, request) }); err != nil {
		_ = unix.Close(fd)
		return nil, fault.New(op, fault.Unsupported, "device %q: %w", name, err)
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil // pollable, because it is non-blocking: Close ends Read
}
