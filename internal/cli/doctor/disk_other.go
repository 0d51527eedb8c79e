//go:build !(linux || darwin || freebsd)

package doctor

import "github.com/blackhole/blackhole/pkg/fault"

// diskFree is unknown on other systems.
func diskFree(string) (uint64, error) {
	return 0, fault.New("cli.diskFree", fault.Unsupported, "the free space is unknown on this system")
}
