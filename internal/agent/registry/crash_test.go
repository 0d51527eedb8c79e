package registry

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// kept is the part of an instance that survives a crash.
type kept struct {
	weight   int
	lease    string
	override instance.Status
	since    time.Time
}

func keptBy(r *Registry) map[string]kept {
	all, _ := r.All()
	m := make(map[string]kept)
	for _, i := range all {
		m[i.ID] = kept{i.Spec.Weight, i.Lease, i.Override, i.RegisteredAt}
	}
	return m
}

// known is the knowledge of clients at a crash.
type known struct {
	during   int    // index of the running step
	revision uint64 // last one seen
}

// script returns steps of at most one commit each.
func script() []func(r *Registry, now time.Time) error {
	weighted := func(id string, weight int) instance.Registration {
		reg := registration(id)
		reg.Spec.Weight = weight
		return reg
	}
	stage := func(reg instance.Registration, now time.Time) *request { return &request{stage: staging(reg, now)} }
	return []func(r *Registry, now time.Time) error{
		func(r *Registry, now time.Time) error { _, err := r.Register(weighted("a", 1), now); return err },
		func(r *Registry, now time.Time) error {
			group := []*request{stage(weighted("b", 1), now), stage(weighted("c", 1), now), stage(weighted("a", 2), now)}
			r.writing.Lock()
			defer r.writing.Unlock()
			r.commit(group)
			return errors.Join(group[0].err, group[1].err, group[2].err)
		},
		func(r *Registry, now time.Time) error {
			_, err := r.SetStatus(registration("b").Key, instance.StatusOutOfService, now)
			return err
		},
		func(r *Registry, now time.Time) error { _, err := r.Deregister(registration("c").Key, now); return err },
		func(r *Registry, now time.Time) error { _, err := r.Register(weighted("c", 3), now); return err },
		func(r *Registry, now time.Time) error { return beat(r, "c", now.Add(time.Minute)).Err },
		func(r *Registry, now time.Time) error { r.Expire(now.Add(time.Minute)); return nil },
		func(r *Registry, now time.Time) error { _, err := r.Register(weighted("a", 4), now); return err },
		func(r *Registry, now time.Time) error { r.Expire(now.Add(time.Hour)); return nil },
	}
}

// staging returns the stage of a registration.
func staging(reg instance.Registration, now time.Time) func(*commit) error {
	return func(c *commit) error {
		if err := reg.Normalize(); err != nil {
			return err
		}
		base, _, err := c.register(reg, now)
		if err == nil {
			c.put(base, func() { c.r.install(base, "", false, now) })
		}
		return err
	}
}

// TestCrashAtEveryStepOfTheDisk crashes before each write, and keeps none, some
// and all of the unsynced data.
func TestCrashAtEveryStepOfTheDisk(t *testing.T) {
	for _, share := range []int{0, 50, 100} {
		t.Run(fmt.Sprintf("kept %d%%", share), func(t *testing.T) {
			var (
				step    atomic.Int64
				running atomic.Pointer[Registry]
			)
			disk := storetest.NewCrashing(share, func() known {
				k := known{during: int(step.Load())}
				if r := running.Load(); r != nil {
					k.revision = r.revision.Load()
				}
				return k
			})
			r, err := Open(config(disk), epoch())
			require.NoError(t, err)
			running.Store(r)
			states := []map[string]kept{{}, keptBy(r)} // before and after each step; the first step is Open
			for i, do := range script() {
				step.Store(int64(i + 1))
				require.NoError(t, do(r, epoch().Add(time.Duration(i)*time.Second)))
				states = append(states, keptBy(r))
			}
			require.NoError(t, r.Close())
			require.Empty(t, states[len(states)-1], "all were removed in the end")
			wrecks := disk.CrashImages()
			require.Greater(t, len(wrecks), 2*len(script()), "the disk was watched")
			for _, w := range wrecks {
				inspect(t, w.FS, w.Known, states)
			}
		})
	}
}

// inspect opens the disk after a crash.
func inspect(t *testing.T, fs vfs.FS, was known, states []map[string]kept) {
	before, after := states[was.during], states[was.during+1]
	r, err := Open(config(fs), epoch().Add(-100*time.Hour)) // with a clock set back
	require.NoError(t, err, "step %d", was.during)
	defer func() { require.NoError(t, r.Close()) }()
	if got := keptBy(r); !maps.Equal(before, got) {
		require.Equal(t, after, got, "step %d: neither all nor nothing", was.during)
	}
	all, _ := r.All()
	for _, i := range all {
		require.Greater(t, i.Revision, was.revision, "step %d", was.during)
	}
	require.Greater(t, register(t, r, registration("x"), epoch()).Revision, was.revision)
}

// TestDiskFails breaks syncs: unconfirmed changes stay invisible, heartbeats
// and removals continue, later writes fail, and a new Open repairs all.
func TestDiskFails(t *testing.T) {
	disk := storetest.NewFailing()
	c := config(disk)
	f := follow(t, &c)
	r, err := Open(c, epoch())
	require.NoError(t, err)
	a := register(t, r, registration("a"), epoch())
	register(t, r, registration("b"), epoch())
	f.take()
	require.NoError(t, r.Storage())
	disk.Fail(true)
	_, err = r.Register(registration("c"), epoch())
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "input/output error")
	require.ErrorIs(t, r.Storage(), fault.Unavailable)
	disk.Fail(false)
	_, err = r.Deregister(a.Key, epoch())
	require.ErrorIs(t, err, fault.Unavailable)
	_, err = r.SetStatus(a.Key, instance.StatusDown, epoch())
	require.ErrorIs(t, err, fault.Unavailable)
	require.Empty(t, f.take())
	f.agrees(t, r)

	now := epoch().Add(time.Minute)
	require.NoError(t, beat(r, "a", now).Err)
	r.Expire(now)
	require.Equal(t, []string{"b gone lost"}, f.take())
	after := disk.Synced()
	_ = r.Close() // may return the failure

	r = open(t, config(after), now)
	require.Equal(t, 2, len(r.entries), "what was removed is back, to be removed again")
	register(t, r, registration("c"), now)
	r.Expire(now.Add(time.Hour))
	require.Zero(t, len(r.entries))
}

// TestOneCommit lets changes of one instance wait for one commit: each sees the
// earlier ones.
func TestOneCommit(t *testing.T) {
	lost := epoch().Add(time.Hour)
	a, b := registration("a"), registration("b")
	changed := registration("a")
	changed.Spec.Weight = 9
	expire := func(c *commit) error {
		c.expire([]instance.Key{a.Key}, lost)
		return nil
	}
	deregister := func(c *commit) error {
		if c.get(a.Key) == nil {
			return notFound("id", "a")
		}
		c.remove(a.Key, func() { c.r.drop(c.r.entries[a.Key], instances.ReasonDeregistered, lost) })
		return nil
	}
	for _, c := range []struct {
		name   string
		before func(r *Registry)
		stages []func(*commit) error
		want   []string // of the log
		errs   []fault.Kind
	}{
		{name: "registers again, is not lost", stages: []func(*commit) error{staging(changed, lost), expire}, want: []string{"a UP registered"}},
		{name: "is lost, registers anew", stages: []func(*commit) error{expire, staging(changed, lost)}, want: []string{"a gone lost", "a UP registered"}},
		{name: "heard of meanwhile", before: func(r *Registry) { beat(r, "a", lost) }, stages: []func(*commit) error{expire}},
		{name: "deregisters, is not lost too", stages: []func(*commit) error{deregister, expire}, want: []string{"a gone deregistered"}},
		{
			name: "deregisters twice", stages: []func(*commit) error{deregister, deregister},
			want: []string{"a gone deregistered"}, errs: []fault.Kind{0, fault.NotFound},
		},
		{
			name: "is lost and deregisters", stages: []func(*commit) error{expire, deregister},
			want: []string{"a gone lost"}, errs: []fault.Kind{0, fault.NotFound},
		},
		{
			name: "makes room", stages: []func(*commit) error{staging(b, lost), deregister, staging(b, lost), staging(a, lost)},
			want: []string{"a gone deregistered", "b UP registered"},
			errs: []fault.Kind{fault.PoolExhausted, 0, 0, fault.PoolExhausted},
		},
		{
			name: "loss makes room", stages: []func(*commit) error{expire, staging(b, lost), staging(a, lost)},
			want: []string{"a gone lost", "b UP registered"}, errs: []fault.Kind{0, 0, fault.PoolExhausted},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := config(vfs.NewMem())
			conf.MaxInstances = 1
			f := follow(t, &conf)
			r := open(t, conf, epoch())
			register(t, r, a, epoch())
			if c.before != nil {
				c.before(r)
			}
			f.take()
			var group []*request
			for _, stage := range c.stages {
				group = append(group, &request{stage: stage})
			}
			r.writing.Lock()
			r.commit(group)
			r.writing.Unlock()
			for n, kind := range c.errs {
				require.Equal(t, kind, fault.KindOf(group[n].err))
				require.Equal(t, kind == fault.Internal, group[n].err == nil)
			}
			require.Equal(t, c.want, f.take())
			f.agrees(t, r)
			kept := keptBy(r)
			require.NoError(t, r.Close())
			require.Equal(t, kept, keptBy(open(t, conf, lost)), "on disk")
		})
	}
}

// TestDiskFull: a full disk refuses changes and shows none of them. When the disk has room again, changes succeed.
func TestDiskFull(t *testing.T) {
	disk := storetest.NewFailing()
	c := config(disk)
	f := follow(t, &c)
	r, err := Open(c, epoch())
	require.NoError(t, err)
	a := register(t, r, registration("a"), epoch())
	f.take()
	disk.Fill(true)
	_, err = r.Register(registration("b"), epoch())
	require.ErrorIs(t, err, fault.Unavailable)
	_, err = r.Deregister(a.Key, epoch())
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, r.Storage(), "the disk is full")
	require.NoError(t, beat(r, "a", epoch()).Err)
	require.Empty(t, f.take())
	disk.Fill(false)
	require.NoError(t, r.Storage())
	register(t, r, registration("b"), epoch())
	require.NoError(t, r.Close())
	require.Len(t, open(t, config(disk), epoch()).entries, 2)
}
