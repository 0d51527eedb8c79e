package replica_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

const nextLife = groupID + ", the next life"

// bereaved is a group of three of which only the last follower is left; token was granted last.
func bereaved(t *testing.T) (survivor *node, lock *apiv1.TryLockRequest, token coord.Token) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	lease := l.do(&apiv1.LeaseGrantRequest{TtlMs: time.Hour.Milliseconds()}).Lease
	for i := range 50 { // past a snapshot
		l.do(put("key", string(rune('a'+i%26))))
	}
	lock = &apiv1.TryLockRequest{Name: "db", LeaseId: int64(lease)}
	token = l.do(lock).Lock.Token
	c.agree()
	for _, n := range c.nodes {
		if n != l {
			survivor = n
		}
		n.crash()
	}
	return survivor, lock, token
}

func TestRefound(t *testing.T) {
	n, lock, token := bereaved(t)
	old := n.store.Member()
	n.open()
	v, err := replica.Inspect(n.store)
	require.NoError(t, err)
	require.Len(t, v.Members(), 3)
	index, term := v.Last()
	before := v.Machine().Revision()
	require.Equal(t, coord.Revision(token), before, "what the majority had applied is in the log, though it was not said to be committed")
	hash := v.Machine().Image().Hash()

	only := replica.Member{ID: 4711, Peer: "survivor"}
	require.NoError(t, v.Recover(nextLife, only))
	require.NoError(t, n.store.Close())
	n.restart()
	require.Equal(t, uint64(4711), n.store.Member())
	require.NotEqual(t, old, n.store.Member())
	require.Equal(t, nextLife, n.store.Group())
	n.c.nodes = []*node{n}
	require.Same(t, n, n.c.leader())
	require.Equal(t, []replica.Member{only}, n.Members())
	require.Greater(t, n.Status().Applied, index)
	require.Greater(t, n.Header().Term, term)
	require.NotEqual(t, hash, n.Machine().Image().Hash())
	require.EqualValues(t, 1, n.Machine().Incarnation())
	require.Greater(t, n.Machine().Revision(), before+1<<39)
	require.Equal(t, n.Machine().Revision(), n.Machine().Compacted(), "nobody watches across the gap")

	held := n.do(lock)
	require.NoError(t, held.Err)
	require.Equal(t, token, held.Lock.Token, "who held the lock holds it")
	n.do(&apiv1.LeaseRevokeRequest{Id: lock.LeaseId})
	lock.LeaseId = int64(n.do(&apiv1.LeaseGrantRequest{TtlMs: 10_000}).Lease)
	require.Greater(t, n.do(lock).Lock.Token, token+1<<39, "more than can have been granted by those lost")
}

// Surveying changes nothing, so that it can be looked at before.
func TestSurveyOnly(t *testing.T) {
	n, _, _ := bereaved(t)
	for range 2 {
		n.open()
		v, err := replica.Inspect(n.store)
		require.NoError(t, err)
		require.Zero(t, v.Machine().Incarnation())
		require.Len(t, v.Members(), 3)
		require.NoError(t, n.store.Close())
	}
	empty, err := raftlog.Open(raftlog.Options{FS: vfs.NewMem(), Dir: "x"})
	require.NoError(t, err)
	defer empty.Close()
	_, err = replica.Inspect(empty)
	require.ErrorIs(t, err, fault.Invalid)
}

// A power cut at any write leaves the member of before or that of after, each whole.
func TestRefoundIsAtomic(t *testing.T) {
	n, _, token := bereaved(t)
	finished := false
	outcomes := map[string]int{}
	for cut := int64(0); !finished; cut++ {
		seed := rand.New(rand.NewPCG(uint64(cut), 1))
		fs := n.fs.CrashClone(vfs.CrashCloneCfg{RNG: seed})
		var writes, limit atomic.Int64
		limit.Store(1 << 30)
		power := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && writes.Add(1) > limit.Load() {
				return errorfs.ErrInjected
			}
			return nil
		})
		s, err := raftlog.Open(raftlog.Options{FS: errorfs.Wrap(fs, power), Dir: "group"})
		require.NoError(t, err)
		v, err := replica.Inspect(s)
		require.NoError(t, err)
		limit.Store(writes.Load() + cut)
		err = v.Recover(nextLife, replica.Member{ID: 4711, Peer: "survivor"})
		finished = err == nil
		after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: seed})
		_ = s.Close()

		s, err = raftlog.Open(raftlog.Options{FS: after, Dir: "group"})
		require.NoError(t, err)
		v, err = replica.Inspect(s)
		require.NoError(t, err)
		outcomes[s.Group()]++
		if s.Group() == groupID {
			require.False(t, finished)
			require.NotEqual(t, uint64(4711), s.Member())
			require.Equal(t, coord.Revision(token), v.Machine().Revision())
		} else {
			require.Equal(t, uint64(4711), s.Member())
			require.EqualValues(t, 1, v.Machine().Incarnation())
			require.Len(t, v.Members(), 1)
		}
		require.NoError(t, s.Close())
	}
	require.Positive(t, outcomes[groupID])
	require.Positive(t, outcomes[nextLife])
}
