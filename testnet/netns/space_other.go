//go:build !linux

package netns

import (
	"net/netip"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Space is a network namespace, which exists on Linux only.
type Space struct{}

// NewSpace fails with Unsupported: this system has no network namespaces.
func NewSpace() (*Space, error) {
	return nil, fault.New("netns.NewSpace", fault.Unsupported, "network namespaces are of Linux")
}

// Do runs f.
func (*Space) Do(f func() error) error { return f() }

// IP does nothing.
func (*Space) IP(...string) error { return nil }

// Run does nothing.
func (*Space) Run(string, string, ...string) error { return nil }

// Set does nothing.
func (*Space) Set(string, string) error { return nil }

func (*Space) awaitLocal(netip.Addr) error { return nil }

// Close does nothing.
func (*Space) Close() {}

func openTUN(*Space, string) (device, error) {
	return nil, fault.New("netns.openTUN", fault.Unsupported, "network namespaces are of Linux")
}
