package replica_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// survey is what a stopped member's disk promises.
type survey struct {
	last, term uint64
	hard       string
	hash       [sha256.Size]byte
}

func surveyOf(fs vfs.FS) (s survey, err error) {
	store, err := raftlog.Open(raftlog.Options{FS: fs, Dir: "group"})
	if err != nil {
		return s, err
	}
	defer func() { _ = store.Close() }()
	hard, _, _ := store.InitialState()
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(hard)
	s.hard = string(b)
	v, err := replica.Inspect(store)
	if err != nil {
		return s, err
	}
	s.last, s.term = v.Last()
	s.hash = v.Machine().Image().Hash()
	return s, nil
}

// worked returns the disk of a killed member with a snapshot, entries in tables and entries in the log.
func worked(t *testing.T, voters int) *vfs.MemFS {
	c := newCluster(t, voters, func(c *replica.Config) { c.SnapshotEntries = 25 })
	for i := range 60 {
		if i == 30 {
			c.agree()
			for _, n := range c.nodes {
				require.NoError(t, n.store.Close())
				n.restart()
			}
		}
		require.NoError(t, c.leader().do(put(fmt.Sprint("key", i), "v")).Err)
	}
	require.NoError(t, c.leader().do(&apiv1.LeaseGrantRequest{TtlMs: 5_000}).Err)
	c.agree()
	for _, n := range c.nodes {
		if voters == 1 || n != c.leader() {
			return storetest.Copy(n.fs)
		}
	}
	return nil
}

// TestDamage: with one damage to one file, a member refuses its disk or has all that it acknowledged, its vote included.
func TestDamage(t *testing.T) {
	for name, voters := range map[string]int{"alone": 1, "one of three": 3} {
		t.Run(name, func(t *testing.T) {
			disk := worked(t, voters)
			want, err := surveyOf(storetest.Copy(disk))
			require.NoError(t, err)
			require.Greater(t, want.last, uint64(60))
			refused, whole := 0, 0
			for what, fs := range storetest.Damages(t, disk, "group", 60) {
				if got, err := surveyOf(fs); err != nil {
					refused++
				} else {
					require.Equal(t, want, got, what)
					whole++
				}
			}
			t.Logf("%d damages: %d refused, %d harmless, 0 unnoticed", refused+whole, refused, whole)
			require.Greater(t, refused, 100)
		})
	}
}
