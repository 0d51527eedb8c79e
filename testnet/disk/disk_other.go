//go:build !linux

package disk

import "github.com/blackhole/blackhole/pkg/fault"

// Mount fails with Unsupported: this system has no disks in memory that every test may mount.
func Mount(string, int) (*Disk, error) {
	return nil, fault.New("disk.Mount", fault.Unsupported, "small disks are of Linux")
}

// Close does nothing.
func (*Disk) Close() error { return nil }

func full(error) bool { return false }
