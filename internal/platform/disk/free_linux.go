package disk

import (
	"cmp"

	"golang.org/x/sys/unix"
)

// freeOf counts in fragments: the size of a block is that of a good transfer, a megabyte on some shared disks. Old
// kernels tell no size of fragments, and then it is that of a block (statfs(2)).
func freeOf(s *unix.Statfs_t) uint64 {
	return s.Bavail * uint64(cmp.Or(s.Frsize, s.Bsize)) //nolint:gosec,unconvert // types differ; none is negative
}
