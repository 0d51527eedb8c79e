package store

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestDiskBreaks: a disk that fails at any write, during the first opening, in use, during a second opening with a table to
// flush, or while closing, ends the store with an error: no panic, no endless repetition. Then everything acknowledged
// is there.
func TestDiskBreaks(t *testing.T) {
	long := strings.Repeat("a long value of a book", 2000)
	for _, reason := range []error{syscall.ENOSPC, syscall.EIO} {
		refused, broken := 0, true
		for allowed := int64(0); broken; allowed += 1 + allowed/25 {
			disk := vfs.NewCrashableMem()
			c := config(storetest.Breaking(disk, allowed, reason))
			var acknowledged []string
			broken = false
			for range 2 {
				l, err := Open(c)
				if err != nil {
					require.ErrorContains(t, err, reason.Error())
					broken = true
					break
				}
				for range 12 { // more than two tables
					name := fmt.Sprint(len(acknowledged))
					if err := l.Commit([]Edit{{name, []byte(long)}}, 0); err != nil {
						require.ErrorIs(t, err, fault.Unavailable)
						require.ErrorContains(t, err, reason.Error())
						broken = true
						break
					}
					acknowledged = append(acknowledged, name)
				}
				err = l.Close()
				if broken = broken || err != nil || l.Failure() != nil; broken {
					break
				}
			}
			if broken {
				refused++
			}
			for what, fs := range map[string]*vfs.MemFS{"killed": storetest.Copy(disk), "power cut": disk.CrashClone(vfs.CrashCloneCfg{})} {
				l, err := Open(config(fs))
				require.NoError(t, err, "%s after %d writes", what, allowed)
				got := contentOf(t, l).values
				for _, name := range acknowledged {
					require.Contains(t, got, name, "%s after %d writes", what, allowed)
				}
				require.NoError(t, l.Close())
			}
		}
		t.Logf("%v: the disk broke at %d places", reason, refused)
		require.Greater(t, refused, 40)
	}
}
