package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestDiskFails: a failed sync stops a member, not its peer. The peer goes on as a client of the others, says so, and is a
// member again after a restart with a working disk.
func TestDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3)
		disks := make([]*storetest.Failing, 3)
		for i, p := range w.peers {
			disks[i] = storetest.NewFailing()
			p.fs = disks[i]
			w.start(i, w.listed(3))
		}
		w.await("three voters", func() bool { return len(w.state().Voters) == 3 })
		w.await("a leader", func() bool { return w.leader() >= 0 })
		i := w.leader()
		victim := w.peers[i]
		token := locked(t, victim, "n")
		disks[i].Fail(true)
		_, _, err := ops.Of(victim).Do(t.Context(), ops.Command{Owner: victim.id(), Op: &ops.Txn{
			Then: []ops.Step{{Put: &ops.Put{Key: "k", Value: []byte("v")}}},
		}})
		require.NoError(t, err, "another member leads, and the repeated command is applied")
		require.Equal(t, "stopped", w.phase(victim))
		require.Contains(t, victim.conditions.ActiveNames(), "member_stopped")
		require.Greater(t, locked(t, victim, "n"), token)
		after := disks[i].Synced()
		require.Error(t, victim.Close())

		victim.fs = after
		w.start(i, w.listed(3))
		w.await("it is a member", func() bool { return w.phase(victim) == "member" })
		require.Empty(t, victim.conditions.ActiveNames())
	})
}

// TestDiskFull: a full disk stops a member, whichever it is. The peer says so, and goes on as a client of the others.
// Once the disk has room the peer is a member again by itself, with all that was acknowledged; and so once more.
func TestDiskFull(t *testing.T) {
	for _, victim := range []string{"leader", "follower", "learner"} {
		t.Run(victim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 4)
				disks := make([]*storetest.Failing, 4)
				for i, p := range w.peers {
					disks[i] = storetest.NewFailing()
					p.fs, p.policy.Members = disks[i], formation.TrustedMembers
					w.start(i, w.listed(3))
				}
				w.await("a learner", func() bool { return w.leader() >= 0 && len(w.state().Learners) == 1 })
				i := w.leader()
				switch victim {
				case "follower":
					i = (i + 1) % 3
				case "learner":
					i = 3
				}
				p, other := w.peers[i], w.peers[(i+1)%3]
				token := locked(t, p, "n")
				for range 2 {
					disks[i].Fill(true)
					w.await("the member has stopped", func() bool {
						token = locked(t, other, "n")
						return w.phase(p) == "stopped"
					})
					require.Contains(t, p.conditions.ActiveNames(), "member_stopped")
					require.Contains(t, p.conditions.Active()[0].String(), "when 20 MiB are free")
					next := locked(t, p, "n")
					require.Greater(t, next, token)
					time.Sleep(30 * time.Second)
					require.Equal(t, "stopped", w.phase(p), "the disk is still full")

					disks[i].Fill(false)
					w.await("it is a member again", func() bool { return w.phase(p) == "member" && w.leader() >= 0 })
					require.NotContains(t, p.conditions.ActiveNames(), "member_stopped")
					token = locked(t, p, "n")
					require.Greater(t, token, next)
				}
			})
		})
	}
}

// TestDamagedDisk: a member whose disk lacks acknowledged writes does not vote. Alone, it refuses all calls with the way
// out, which works; among others it is their client.
func TestDamagedDisk(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, 1)
			p := w.peers[0]
			disk := vfs.NewCrashableMem()
			p.fs = disk
			w.start(0, w.listed(1))
			w.await("it leads", func() bool { return w.leader() == 0 })
			early := storetest.Copy(disk)
			locked(t, p, "n")
			late := storetest.Copy(disk)
			p.stop(t)

			copyFile(t, late, early, "data/raft/mark") // the log of an earlier day
			p.fs = early
			w.start(0, w.listed(1))
			time.Sleep(time.Second)
			require.Equal(t, "stopped", w.phase(p))
			_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Owner: p.id(), Op: &ops.LeaseGrant{TTL: 1000}})
			require.ErrorIs(t, err, fault.Unavailable)
			require.ErrorContains(t, err, "before the last acknowledged one")
			require.ErrorContains(t, err, "blackholed group restore FILE")
			p.stop(t)
		})
	})
	t.Run("one of three", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, 3)
			disk := vfs.NewCrashableMem()
			w.peers[0].fs = disk
			for i := range w.peers {
				w.start(i, w.listed(3))
			}
			w.await("three voters", func() bool { return len(w.state().Voters) == 3 })
			p := w.peers[0]
			locked(t, p, "n")
			p.stop(t)
			fs := storetest.Copy(disk)
			require.NoError(t, fs.RemoveAll("data/raft/log"))
			p.fs = fs
			w.start(0, w.listed(3))
			w.await("the others lead", func() bool { return w.leader() > 0 })
			require.Equal(t, "stopped", w.phase(p))
			locked(t, p, "n")
			p.stop(t)

			require.NoError(t, fs.RemoveAll("data/raft"))
			w.start(0, w.listed(3))
			w.await("it is a member again", func() bool { return w.phase(p) == "member" })
		})
	})
}

func copyFile(t *testing.T, from, to vfs.FS, path string) {
	t.Helper()
	require.NoError(t, vfs.CopyAcrossFS(from, path, to, path))
}
