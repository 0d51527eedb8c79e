//go:build darwin || freebsd

package disk

import "golang.org/x/sys/unix"

// freeOf counts in blocks, which are fragments here (statfs(2)).
func freeOf(s *unix.Statfs_t) uint64 {
	return uint64(s.Bavail) * uint64(s.Bsize) //nolint:gosec,unconvert // types differ; none is negative
}
