package machine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// since is an entry that repeats a registration.
func since(e *apiv1.DirectoryEntry, at coord.Revision) *apiv1.DirectoryEntry {
	e = proto.CloneOf(e)
	e.Since = int64(at)
	return e
}

// adopted returns a new registration.
func adopted(e *apiv1.DirectoryEntry) *apiv1.DirectoryEntry {
	e = proto.CloneOf(e)
	e.Adopt = true
	return e
}

// two returns a lease of alice and one of bob.
func two(t *testing.T) (l *log, mine, theirs coord.LeaseID) {
	l = newLog()
	return l, l.leases(t, 1)[0], l.lease(t, bob)
}

// Two owners return after an absence, both with a registration of one instance. In either order the later
// registration wins, at once.
func TestLastRegistrationCounts(t *testing.T) {
	one, two := entry("n", "s", "a", 1), entry("n", "s", "a", 2)
	for _, c := range []struct {
		name          string
		first, second *apiv1.DirectoryEntry // of alice, of bob
		moves         bool
		since         coord.Revision
	}{
		{"the later comes second", since(one, 4), since(two, 6), true, 6},
		{"the later comes first", since(one, 6), since(two, 4), false, 6},
		{"nobody knows of the first", one, since(two, 4), true, 4},
		{"nobody knows of the second", since(one, 4), two, false, 4},
		{"nobody knows of either", one, two, false, 0},
		{"of another history", since(one, 4), since(two, 91), false, 4},
		{"both of another history", since(one, 81), since(two, 91), false, 0},
		{"it is new", since(one, 6), adopted(two), true, 13},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLog()
			mine, theirs := l.leases(t, 1)[0], l.lease(t, bob)
			for range 10 {
				l.must(t, write(put("x", "y", 0)))
			}
			l.must(t, batch(mine, 1, c.first))
			r, e := l.do(bob, batch(theirs, 1, c.second))
			require.NoError(t, r.Err)
			require.Equal(t, c.since, l.Since(string(one.Key)))
			if !c.moves {
				require.Equal(t, []string{string(one.Key)}, r.Foreign)
				require.Empty(t, e.Events)
				return
			}
			require.Empty(t, r.Foreign)
			require.Len(t, e.Events, 1)
			require.Equal(t, theirs, e.Events[0].KV.Lease)
			for range 3 { // it stays away
				r, _ = l.must(t, batch(mine, 1, c.first))
				require.Equal(t, []string{string(one.Key)}, r.Foreign)
			}
		})
	}
}

// An entry keeps its Since over changes of value and lease, and its owner learns it again.
func TestSince(t *testing.T) {
	l, mine, theirs := two(t)
	a, b := entry("n", "s", "a", 1), entry("n", "s", "b", 1)
	r, _ := l.must(t, batch(mine, 1, adopted(a), b))
	require.Equal(t, []coord.Revision{2, 0}, []coord.Revision{l.Since(string(a.Key)), l.Since(string(b.Key))})
	require.Equal(t, []coord.Revision{2, 0}, r.Since)
	r, _ = l.must(t, batch(mine, 1, since(entry("n", "s", "a", 2), 2)))
	require.Equal(t, []coord.Revision{2}, r.Since)
	r, _ = l.must(t, batch(mine, 2, b, entry("n", "s", "a", 2)))
	require.Equal(t, []coord.Revision{0, 2}, r.Since, "a new process does not know")
	other := l.leases(t, 1)[0]
	r, _ = l.must(t, batch(other, 3, entry("n", "s", "a", 2)))
	require.Equal(t, []coord.Revision{2}, r.Since)

	// A registration without a change still counts.
	l.must(t, write(put("x", "y", 0)))
	before := l.Revision()
	kv, _ := l.Get(string(a.Key))
	r, e := l.must(t, batch(other, 3, adopted(entry("n", "s", "a", 2))))
	require.Empty(t, e.Events)
	require.Equal(t, []coord.Revision{before}, r.Since)
	require.Equal(t, before, l.Since(string(a.Key)))
	now, _ := l.Get(string(a.Key))
	require.Equal(t, kv.ModRevision, now.ModRevision)
	require.Equal(t, before, r.Revision)
	again, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, before, again.Since(string(a.Key)))
	require.Equal(t, l.StateHash(), again.StateHash())
	r, _ = l.do(bob, batch(theirs, 1, since(a, before-1)))
	require.Equal(t, []string{string(a.Key)}, r.Foreign)

	r, _ = l.must(t, batch(other, 3, since(b, 100)))
	require.Equal(t, []coord.Revision{0}, r.Since, "of a history that was lost")
	l.refused(t, fault.Invalid, "puts[0].since", batch(other, 3, since(b, -1)))
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(other)})
	require.Zero(t, l.Since(string(a.Key)))
}

// An earlier registration does not bring a removed entry back.
func TestRemovals(t *testing.T) {
	a, b := entry("n", "s", "a", 1), entry("n", "s", "b", 1)
	setup := func(t *testing.T) (l *log, mine, theirs coord.LeaseID) {
		l, mine, theirs = two(t)
		l.must(t, batch(mine, 1, adopted(a), adopted(b)))     // revision 2
		l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(mine)}) // 3: alice is gone
		at, _ := l.Removed(string(a.Key))
		require.Zero(t, at, "she may come back")
		l.do(bob, batch(theirs, 1, adopted(a), adopted(b)))                                                                  // 4
		l.do(bob, &apiv1.PublishInstancesRequest{LeaseId: int64(theirs), Generation: 1, Deletes: [][]byte{a.Key}})           // 5
		l.do(bob, &apiv1.PublishInstancesRequest{LeaseId: int64(theirs), Generation: 1, Replace: true, RangeEnd: []byte{0}}) // 6
		mine = l.leases(t, 1)[0]
		for key, want := range map[string]coord.Revision{string(a.Key): 5, string(b.Key): 6} {
			at, owner := l.Removed(key)
			require.Equal(t, want, at)
			require.Equal(t, bob, owner)
		}
		return l, mine, theirs
	}
	for _, c := range []struct {
		name    string
		e       *apiv1.DirectoryEntry
		foreign bool
	}{
		{"nobody knows since when", a, true},
		{"of before", since(a, 2), true},
		{"of just before", since(a, 4), true},
		{"of after", since(a, 5), false},
		{"of before, replaced", since(b, 5), true},
		{"of another history", since(a, 78), true},
		{"it is new", adopted(a), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, mine, theirs := setup(t)
			r, e := l.must(t, batch(mine, 1, c.e))
			at, _ := l.Removed(string(c.e.Key))
			if c.foreign {
				require.Equal(t, []string{string(c.e.Key)}, r.Foreign)
				require.Empty(t, e.Events)
				require.NotZero(t, at)
				require.Empty(t, present(l))
				return
			}
			require.Empty(t, r.Foreign)
			require.Zero(t, at, "it is there again")
			l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(mine)})
			r, _ = l.do(bob, batch(theirs, 1, c.e))
			require.Empty(t, r.Foreign)
		})
	}
	t.Run("its owner knows best", func(t *testing.T) {
		l, _, theirs := setup(t)
		r, _ := l.do(bob, batch(theirs, 1, a))
		require.Empty(t, r.Foreign)
		require.Equal(t, []string{"n/s/a"}, present(l))
	})
}

// Removal records are bounded; the oldest go first.
func TestRemovalRecordsAreBounded(t *testing.T) {
	l, mine, theirs := two(t)
	const more = 5
	var all []*apiv1.DirectoryEntry
	for i := range machine.MaxRemovalRecords + more {
		all = append(all, entry("n", "s", fmt.Sprintf("%05d", i), 1))
	}
	for i := 0; i < len(all); i += directory.MaxBatch {
		some := all[i:min(i+directory.MaxBatch, len(all))]
		gone := &apiv1.PublishInstancesRequest{LeaseId: int64(mine), Generation: 1}
		for _, e := range some {
			gone.Deletes = append(gone.Deletes, e.Key)
		}
		l.must(t, batch(mine, 1, some...))
		l.must(t, gone)
	}
	known := 0
	for i, e := range all {
		at, _ := l.Removed(string(e.Key))
		require.Equal(t, i >= more, at > 0, i)
		if at > 0 {
			known++
		}
	}
	require.Equal(t, machine.MaxRemovalRecords, known)
	again, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, l.StateHash(), again.StateHash())
	for _, m := range []*machine.Machine{l.Machine, again} { // both forget the same record
		index, term := m.Index()
		r, _ := coordtest.Apply(m, index+1, term, coordtest.Command(bob, batch(theirs, 1, all[0], all[more])))
		require.Equal(t, []string{string(all[more].Key)}, r.Foreign)
		m.Apply(index+2, term, coordtest.Command(bob, &apiv1.PublishInstancesRequest{LeaseId: int64(theirs), Generation: 1, Deletes: [][]byte{all[0].Key}}))
		at, _ := m.Removed(string(all[more].Key))
		require.Zero(t, at)
	}
	require.Equal(t, l.StateHash(), again.StateHash())
}
