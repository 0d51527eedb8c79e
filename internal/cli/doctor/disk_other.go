//go:build !(linux || darwin || freebsd)

package doctor

import "github.com/blackhole/blackhole/pkg/fault"

// DiskFree is unknown on other systems.
func DiskFree(string) (uint64, error) {
	return 0, fault.New("cli.DiskFree", fault.Unsupported, "the free space is unknown on this system")
}
