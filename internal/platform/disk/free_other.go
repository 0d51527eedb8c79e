//go:build !(linux || darwin || freebsd)

package disk

import "github.com/blackhole/blackhole/pkg/fault"

// Free is unknown on other systems.
func Free(string) (uint64, error) {
	return 0, fault.New("disk.Free", fault.Unsupported, "the free space is unknown on this system")
}
