//go:build !linux

package lan

import "github.com/blackhole/blackhole/pkg/fault"

// New fails with Unsupported: this system has no network namespaces.
func New(int) (*LAN, error) {
	return nil, fault.New("lan.New", fault.Unsupported, "network namespaces are of Linux")
}

type space struct{}

func (*space) do(f func() error) error { return f() }

func (*space) close() {}

func (*Host) ip(...string) error { return nil }
