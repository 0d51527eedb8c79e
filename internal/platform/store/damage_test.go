package store

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestDamage: with one damage to one file, a store refuses to open or has all that was acknowledged.
func TestDamage(t *testing.T) {
	disk := vfs.NewCrashableMem()
	l, want := open(t, config(disk)), content{values: map[string]string{}}
	for i := range 60 {
		if i == 30 { // half of the values lie in a table, half in the log
			require.NoError(t, l.Close())
			l = open(t, config(disk))
		}
		these := []Edit{{Name: fmt.Sprint(i), Value: []byte("value of a book")}}
		require.NoError(t, l.Commit(these, uint64(i)))
		want = want.commit(these, uint64(i))
	}
	killed := storetest.Copy(disk)
	require.NoError(t, l.Close())
	refused, whole := 0, 0
	for what, fs := range storetest.Damages(t, killed, config(nil).Dir, 60) {
		l, err := Open(config(fs))
		if err != nil {
			require.NotErrorIs(t, err, fault.Conflict, what)
			refused++
			continue
		}
		got := content{values: map[string]string{}, floor: l.Floor()}
		err = l.All(func(name string, value []byte) error { got.values[name] = string(value); return nil })
		if err != nil {
			require.ErrorIs(t, err, fault.Internal, what)
			refused++
		} else {
			require.Equal(t, want, got, what)
			whole++
		}
		_ = l.Close()
	}
	t.Logf("%d damages: %d refused, %d harmless, 0 unnoticed", refused+whole, refused, whole)
	require.Greater(t, refused, 100)
}

// TestRestoredLog: the files of an earlier moment beside the present mark are refused, and a mark of an earlier moment is
// harmless.
func TestRestoredLog(t *testing.T) {
	disk := vfs.NewCrashableMem()
	l := open(t, config(disk))
	require.NoError(t, l.Commit([]Edit{{"a", []byte("1")}}, 1))
	mark := config(nil).Dir + "/mark"
	early := storetest.Copy(disk)
	require.NoError(t, l.Commit([]Edit{{"b", []byte("1")}}, 2))
	late := storetest.Copy(disk)
	require.NoError(t, l.Close())

	put := func(from, to *vfs.MemFS) {
		source, err := from.Open(mark)
		require.NoError(t, err)
		b := make([]byte, 2*slotSize)
		_, err = source.ReadAt(b, 0)
		require.NoError(t, err)
		target, err := to.Create(mark, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = target.Write(b)
		require.NoError(t, err)
	}
	old := storetest.Copy(early)
	put(late, old)
	_, err := Open(config(old))
	require.ErrorIs(t, err, fault.Internal)
	require.ErrorContains(t, err, "1 writes before the last acknowledged one")
	require.ErrorContains(t, err, "Restore it from a backup")
	put(early, late)
	l = open(t, config(late))
	require.Equal(t, uint64(2), l.Floor())
	require.NoError(t, l.Close())
}

// TestMark: each slot survives the loss of unsynced writes to the other, whatever part of them a crash keeps.
func TestMark(t *testing.T) {
	disk := vfs.NewCrashableMem()
	m, err := OpenMark(disk, "mark", false)
	require.NoError(t, err)
	c := Count{Origin: 7}
	for range 3*markSync + markSync/2 {
		c = c.Next([]byte("write"), 0)
		require.NoError(t, m.Set(c, Position{Index: c.Write, Term: 2}))
	}
	for name, fs := range map[string]*vfs.MemFS{"killed": storetest.Copy(disk), "power cut": disk.CrashClone(vfs.CrashCloneCfg{})} {
		kept, err := OpenMark(fs, "mark", false)
		require.NoError(t, err)
		require.NoError(t, kept.Check(c, Position{}), name)
		short := Count{Origin: 7, Write: 3*markSync - 1}
		require.ErrorContains(t, kept.Check(short, Position{Index: 9, Term: 1}), "at entry 9 of term 1 instead of entry", name)
		other := c
		if other.Chain++; name == "killed" {
			require.ErrorContains(t, kept.Check(other, Position{}), "differs", name)
		}
		other = c
		other.Origin++
		require.ErrorContains(t, kept.Check(other, Position{}), "another database", name)
		require.ErrorContains(t, kept.Check(Count{}, Position{}), "is empty", name)
		require.NoError(t, kept.Close())
	}
	require.NoError(t, m.Close())
}
