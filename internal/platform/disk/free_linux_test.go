package disk

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFreeOfRecordedDisks: answers of statfs, as systems gave them.
func TestFreeOfRecordedDisks(t *testing.T) {
	for name, c := range map[string]struct {
		s    unix.Statfs_t
		want uint64
	}{
		"ext4":                      {unix.Statfs_t{Bsize: 4096, Frsize: 4096, Blocks: 61_796_348, Bfree: 33_054_195, Bavail: 29_897_472}, 122_460_045_312},
		"virtiofs, a megabyte":      {unix.Statfs_t{Bsize: 1 << 20, Frsize: 4096, Blocks: 61_202_533, Bfree: 30_910_324, Bavail: 30_910_324}, 126_608_687_104},
		"sshfs, 64 KiB":             {unix.Statfs_t{Bsize: 64 << 10, Frsize: 4096, Bavail: 1000}, 4_096_000},
		"no fragments":              {unix.Statfs_t{Bsize: 512, Bavail: 1000}, 512_000},
		"full, with blocks of root": {unix.Statfs_t{Bsize: 4096, Frsize: 4096, Bfree: 1000}, 0},
	} {
		require.Equal(t, c.want, freeOf(&c.s), name)
	}
	_, err := Free(t.TempDir())
	require.NoError(t, err)
}
