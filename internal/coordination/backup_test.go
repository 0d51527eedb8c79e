package coordination_test

import (
	"bytes"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/pkg/fault"
)

func (p *node) restore(backup io.Reader, commit bool) (formation.Restoration, error) {
	return formation.Restore(formation.RestoreConfig{
		RecoverConfig: formation.RecoverConfig{Key: p.key, Dir: "data", FS: p.fs}, Commit: commit, Backup: backup, Marks: "keys",
	})
}

// TestBackupAndRestore: a backup taken at a client brings back keys and holders. Everything given out after it is below everything
// given out after the restoration, and members of the old incarnation take no part.
func TestBackupAndRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		client := w.peers[3]
		put := func(value string) {
			t.Helper()
			_, _, err := ops.Of(client).Do(t.Context(), ops.Command{Owner: client.id(), Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: "k", Value: []byte(value)}}}}})
			require.NoError(t, err)
		}
		get := func() string {
			t.Helper()
			page, _, err := ops.Of(client).Range(t.Context(), ops.Query{Span: coord.Exactly("k")}, ops.Linearizable)
			require.NoError(t, err)
			require.Len(t, page.Keys, 1)
			return string(page.Keys[0].Value)
		}
		put("before")
		holder := lease(t, client, client.id(), time.Minute)
		held, _, err := ops.Of(client).Do(t.Context(), ops.Command{Owner: client.id(), Op: &ops.Lock{Name: "held", Lease: holder}})
		require.NoError(t, err)
		var file bytes.Buffer
		require.NoError(t, client.Backup(t.Context(), &file))

		put("after")
		last := locked(t, client, "n")
		watched := make(chan error, 1)
		resumed := coord.Watch{Span: coord.Exactly("k"), From: coord.Revision(last) + 1}
		go func() {
			watched <- ops.Of(client).Events(t.Context(), resumed, func(coord.Batch, coord.Header) error { return nil })
		}()
		survivor := w.peers[(w.leader()+1)%3]
		_, err = survivor.restore(bytes.NewReader(file.Bytes()), true)
		require.ErrorIs(t, err, fault.Conflict, "it runs")
		for _, p := range w.peers[:3] {
			p.stop(t)
		}
		would, err := survivor.restore(bytes.NewReader(file.Bytes()), false)
		require.NoError(t, err)
		require.False(t, would.Done)
		require.EqualValues(t, 1, would.Incarnation)
		done, err := survivor.restore(bytes.NewReader(file.Bytes()), true)
		require.NoError(t, err)
		require.Equal(t, []any{true, would.From}, []any{done.Done, done.From})

		w.start(w.index(survivor), w.listed(3))
		w.await("it leads", func() bool { return w.peers[w.index(survivor)].Stats().Leads })
		require.Equal(t, "before", get())
		locks, _, err := ops.Of(client).Locks(t.Context(), ops.LockQuery{Name: "held"})
		require.NoError(t, err)
		require.Equal(t, held.Lock.Token, locks[0].Holding[0].Token)
		states, _, err := ops.Of(client).Leases(t.Context(), ops.LeaseQuery{ID: holder})
		require.NoError(t, err)
		require.Greater(t, states[0].Remaining, (50 * time.Second).Milliseconds(), "the lease has its full time")
		again := locked(t, client, "n")
		require.Greater(t, again, last)
		require.Greater(t, coord.Revision(again), done.From)
		var compacted *coord.Compacted
		require.ErrorAs(t, <-watched, &compacted, "a watch over the restoration")
		require.ErrorAs(t, ops.Of(client).Events(t.Context(), resumed, nil), &compacted, "a cursor of before")

		for i, p := range w.peers[:3] {
			if p != survivor {
				w.start(i, w.listed(3))
				w.await("it is outlived", func() bool { return w.phase(w.peers[i]) == "outlived" })
			}
		}
		survivor.stop(t)
		twice, err := survivor.restore(bytes.NewReader(file.Bytes()), true)
		require.NoError(t, err)
		require.EqualValues(t, 2, twice.Incarnation)
		require.Greater(t, twice.From, coord.Revision(again), "a second restoration is above the first")
	})
}

// TestRestoreIntoNewDirectory: an eligible peer with its key and an empty disk restores the group.
func TestRestoreIntoNewDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 1, 1)
		p := w.peers[0]
		token := locked(t, p, "n")
		id := p.ID()
		var file bytes.Buffer
		require.NoError(t, p.Backup(t.Context(), &file))
		p.stop(t)
		p.fs = vfs.NewMem()
		would, err := p.restore(bytes.NewReader(file.Bytes()), false)
		require.NoError(t, err)
		names, err := p.fs.List("")
		require.NoError(t, err)
		require.Empty(t, names, "a look changes nothing")
		done, err := p.restore(bytes.NewReader(file.Bytes()), true)
		require.NoError(t, err)
		require.Equal(t, would.Incarnation, done.Incarnation)
		w.start(0, w.listed(1))
		w.await("it leads", func() bool { return p.Stats().Leads })
		require.Equal(t, id, p.ID())
		require.Greater(t, locked(t, p, "n"), token+1<<39)
	})
}

// TestDamagedBackup: each cut and each changed byte is refused before anything changes.
func TestDamagedBackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 1, 1)
		p := w.peers[0]
		locked(t, p, "n")
		var file bytes.Buffer
		require.NoError(t, p.Backup(t.Context(), &file))
		p.stop(t)
		p.fs = vfs.NewMem()
		whole := file.Bytes()
		refused := func(kind fault.Kind, b []byte, why string, at int) {
			t.Helper()
			_, err := p.restore(bytes.NewReader(b), true)
			require.ErrorIs(t, err, kind, "%s at %d", why, at)
			require.Equal(t, "file", fault.FieldOf(err), "%v", err)
			names, err := p.fs.List("")
			require.NoError(t, err)
			require.Empty(t, names, "%s at %d", why, at)
		}
		for n := 0; n < len(whole); n += 7 {
			refused(fault.Invalid, whole[:n], "cut", n)
		}
		for n := 0; n < len(whole); n += 7 {
			if n >= 8 && n < 12 { // the version
				continue
			}
			bad := slices.Clone(whole)
			bad[n] ^= 0x40
			_, err := p.restore(bytes.NewReader(bad), true)
			require.Equal(t, "file", fault.FieldOf(err), "changed byte %d: %v", n, err)
		}
		refused(fault.Invalid, append(slices.Clone(whole), 0), "more", len(whole))
		later := slices.Clone(whole)
		later[11] = 2
		refused(fault.Unsupported, later, "later", 11)
	})
}

// TestRestoreOfAnotherGroup: the directory of another group stays as it is.
func TestRestoreOfAnotherGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2)
		var file bytes.Buffer
		for i, p := range w.peers {
			alone := w.listed(i + 1)
			alone.Founders = alone.Founders[i:]
			w.start(i, alone)
			w.await("it leads", func() bool { return p.Stats().Leads })
		}
		require.NoError(t, w.peers[0].Backup(t.Context(), &file))
		before := w.peers[1].ID()
		w.peers[1].stop(t)
		_, err := w.peers[1].restore(bytes.NewReader(file.Bytes()), true)
		require.ErrorIs(t, err, fault.Conflict)
		require.ErrorContains(t, err, before)
	})
}
