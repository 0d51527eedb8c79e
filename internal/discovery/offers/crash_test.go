package offers

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// state is the visible state of a registry: the sequence of each live service.
type state map[string]uint64

func stateOf(r *Registry) state {
	s := state{}
	for _, v := range r.List() {
		s[v.Name().ID] = v.Sequence()
	}
	return s
}

// action is one change. It returns the new versions.
type action func(r *Registry, now time.Time) []*records.Record

func script() []action {
	must := func(r *records.Record, err error) []*records.Record {
		if err != nil {
			panic(err)
		}
		return []*records.Record{r}
	}
	batch := func(ids ...string) action {
		return func(r *Registry, now time.Time) []*records.Record {
			var offers []records.Offer
			for _, id := range ids {
				offers = append(offers, at(offer(id), 52.52, 13.40))
			}
			accepted, errs := r.Register(offers, now)
			if err := errors.Join(errs...); err != nil {
				panic(err)
			}
			return accepted
		}
	}
	return []action{
		batch("a", "b", "c", "d"),
		func(r *Registry, now time.Time) []*records.Record { return must(r.Update(offer("a"), now)) },
		func(r *Registry, now time.Time) []*records.Record { return must(r.Withdraw("b", now)) },
		batch("b", "e"),
		func(r *Registry, now time.Time) []*records.Record { return must(r.Withdraw("b", now)) },
		func(r *Registry, now time.Time) []*records.Record { return r.Due(now.Add(10*time.Hour), 100) },
		func(r *Registry, now time.Time) []*records.Record { return r.Due(now.Add(40*time.Hour), 100) },
		func(r *Registry, now time.Time) []*records.Record { return must(r.Update(at(offer("c"), 1, 1), now)) },
		batch("b"),
	}
}

// TestCrashAtEveryStepOfTheDisk crashes before each write to the disk, with none, some and all of the unsynced
// data kept.
func TestCrashAtEveryStepOfTheDisk(t *testing.T) {
	for _, kept := range []int{0, 50, 100} {
		t.Run(fmt.Sprintf("kept %d%%", kept), func(t *testing.T) {
			var step atomic.Int64
			disk := storetest.NewCrashing(kept, step.Load)
			now := epoch()
			r, err := Open(config(t, disk), now)
			require.NoError(t, err)
			states := []state{{}, stateOf(r)} // before and after each step; the first is Open
			known := []state{{}, {}}          // the highest returned sequence of each service, withdrawn ones included
			for i, do := range script() {
				step.Store(int64(i + 1))
				told := maps.Clone(known[i+1])
				for _, v := range do(r, now) {
					told[v.Name().ID] = max(told[v.Name().ID], v.Sequence())
				}
				states, known = append(states, stateOf(r)), append(known, told)
			}
			require.NoError(t, r.Close())
			images := disk.CrashImages()
			require.Greater(t, len(images), 2*len(script()), "the disk recorded the writes")
			for _, w := range images {
				inspect(t, w.FS, int(w.Known), states, known)
			}
		})
	}
}

// inspect opens the image of a crash during a step.
func inspect(t *testing.T, fs vfs.FS, during int, states, known []state) {
	before, after := states[during], states[during+1]
	now := epoch().Add(-100 * time.Hour) // and the clock was set back
	r, err := Open(config(t, fs), now)
	require.NoError(t, err, "step %d", during)
	defer func() { require.NoError(t, r.Close()) }()
	got := stateOf(r)
	if !maps.Equal(before, got) {
		require.Equal(t, after, got, "step %d: neither all nor nothing", during)
	}
	for id, told := range known[during] {
		var v *records.Record
		if _, live := got[id]; live {
			v, err = r.Update(offer(id), now)
		} else {
			accepted, errs := r.Register([]records.Offer{offer(id)}, now)
			v, err = accepted[0], errs[0]
		}
		require.NoError(t, err)
		require.Greater(t, v.Sequence(), told, "step %d: %s", during, id)
	}
}

// TestDiskFails lets the disk's syncs fail. Unconfirmed changes stay invisible, reads work, later writes fail,
// and the next Open repairs all.
func TestDiskFails(t *testing.T) {
	disk := storetest.NewFailing()
	now := epoch()
	r, err := Open(config(t, disk), now)
	require.NoError(t, err)
	a := register(t, r, now, offer("a"))[0]
	disk.Fail(true)
	at, _ := r.NextDue()
	require.Equal(t, now.Add(ackTimeout), at)
	now = now.Add(time.Second)
	accepted, errs := r.Register([]records.Offer{offer("b")}, now)
	require.Nil(t, accepted[0])
	require.ErrorIs(t, errs[0], fault.Unavailable)
	require.ErrorContains(t, errs[0], "input/output error")
	disk.Fail(false)
	_, err = r.Update(offer("a"), now)
	require.ErrorIs(t, err, fault.Unavailable)
	_, err = r.Withdraw("a", now)
	require.ErrorIs(t, err, fault.Unavailable)
	require.Equal(t, []*records.Record{a}, r.List())
	require.Len(t, r.scheduler.tasks, 1)
	still, _ := r.NextDue()
	require.Equal(t, at, still, "a failed call hands nothing out")

	late := now.Add(DefaultRefresh)
	require.Equal(t, []*records.Record{a}, r.Due(late, 9), "the last version is announced while it is valid")
	require.Empty(t, r.Due(late, 9))
	require.Empty(t, r.Due(a.Expires(), 9))
	after := disk.Synced()
	_ = r.Close() // may report the failure

	r = open(t, config(t, after), now)
	fresh, err := r.Update(offer("a"), now)
	require.NoError(t, err)
	require.Greater(t, fresh.Sequence(), a.Sequence())
}
