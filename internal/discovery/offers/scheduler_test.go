package offers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/records"
)

func sign(t require.TestingT, id string, sequence uint64, issued time.Time) *records.Record {
	r, err := records.Sign("test", key(t, 1), offer(id), records.Stamp{Sequence: sequence, Issued: issued, Expires: issued.Add(24 * time.Hour)})
	require.NoError(t, err)
	return r
}

func bury(t require.TestingT, last *records.Record, now time.Time) *records.Record {
	r, err := records.Tombstone(key(t, 1), last, records.Stamp{Sequence: last.Sequence() + 1, Issued: now, Expires: now.Add(24 * time.Hour)})
	require.NoError(t, err)
	return r
}

func TestBackoff(t *testing.T) {
	last := time.Duration(0)
	for n := 1; n < 100; n++ {
		d := backoff(n)
		require.GreaterOrEqual(t, d, last)
		require.LessOrEqual(t, d, backoffMax)
		last = d
	}
	require.Equal(t, backoffMin, backoff(1))
	require.Equal(t, backoffMax, backoff(1<<30))
}

func TestJitterBounds(t *testing.T) {
	for jitter, want := range map[float64]time.Duration{0: 9 * time.Hour, 0.5: 10 * time.Hour, 1: 11 * time.Hour} {
		m := newScheduler(10*time.Hour, func() float64 { return jitter })
		require.InDelta(t, want, m.jittered(10*time.Hour), float64(time.Microsecond))
	}
}

func TestRenewalIsAtHalfLifeAtLatest(t *testing.T) {
	m := newScheduler(12*time.Hour, func() float64 { return 0.999 })
	v := sign(t, "a", 1, epoch())
	m.add(v, epoch())
	require.Equal(t, epoch().Add(12*time.Hour), m.tasks[versionOf(v)].renew)
}

func TestClockSetBackKeepsIntervals(t *testing.T) {
	m := newScheduler(6*time.Hour, func() float64 { return 0.5 })
	now := epoch()
	a, b := sign(t, "a", 1, now.Add(-3*time.Hour)), sign(t, "b", 1, now)
	tombstone := bury(t, sign(t, "c", 1, now), now)
	for _, v := range []*records.Record{a, b, tombstone} {
		m.add(v, now)
	}
	require.Len(t, m.take(now, 9), 3)
	for _, v := range []*records.Record{a, b, tombstone} {
		m.announced(versionOf(v), true, now)
	}

	// One second back, as by NTP: no effect.
	m.observe(now.Add(-time.Second))
	require.Equal(t, now.Add(3*time.Hour), m.tasks[versionOf(a)].due)

	// One hour back: a keeps its remaining three hours; b is from the future; c waits no longer than before.
	back := now.Add(-time.Hour)
	due := m.take(back, 9)
	require.Len(t, due, 1)
	require.Equal(t, versionOf(b), due[0].version)
	require.True(t, due[0].stale(back))
	require.Equal(t, back.Add(3*time.Hour), m.tasks[versionOf(a)].due)
	require.Equal(t, back.Add(6*time.Hour), m.tasks[versionOf(tombstone)].due)
}

func TestDeferredRenewal(t *testing.T) {
	m := newScheduler(6*time.Hour, func() float64 { return 0.5 })
	v := sign(t, "a", 1, epoch())
	m.add(v, epoch())
	now := epoch().Add(6 * time.Hour)
	first := m.take(now, 1)[0]
	require.True(t, first.stale(now))
	m.deferRenewal(first.version, now)
	now = now.Add(ackTimeout)
	second := m.take(now, 1)[0]
	require.False(t, second.stale(now), "the old version is announced meanwhile")
	now = now.Add(backoffMax)
	third := m.take(now, 1)[0]
	require.True(t, third.stale(now))
}

// listScheduler is the scheduler as a plain list.
type listScheduler struct {
	now      time.Time
	due      map[version]time.Time
	failures map[version]int
}

// at schedules a version, at the latest at a tombstone's expiry.
func (d *listScheduler) at(r *records.Record, due time.Time) {
	if r.Withdrawn() && r.Expires().After(d.now) && due.After(r.Expires()) {
		due = r.Expires()
	}
	d.due[versionOf(r)] = due
}

func (d *listScheduler) announced(r *records.Record, complete bool) {
	v := versionOf(r)
	if _, ok := d.due[v]; !ok {
		return
	}
	d.failures[v]++
	wait := min(time.Second<<min(d.failures[v]-1, 20), 5*time.Minute)
	if complete {
		d.failures[v], wait = 0, 6*time.Hour
	}
	if complete && !r.Withdrawn() {
		d.at(r, epoch().Add(6*time.Hour))
		return
	}
	d.at(r, d.now.Add(wait))
}

// check compares the taken tasks with the due ones.
func (d *listScheduler) check(t *rapid.T, taken []task, limit int) {
	count := 0
	for _, due := range d.due {
		if !due.After(d.now) {
			count++
		}
	}
	if len(taken) != min(limit, count) {
		t.Fatalf("took %d of %d, limit %d", len(taken), count, limit)
	}
	var last time.Time
	for _, task := range taken {
		due, ok := d.due[task.version]
		if !ok || due.After(d.now) || due.Before(last) {
			t.Fatalf("%v taken, due %v", task.version, due)
		}
		last = due
	}
}

func TestSchedulerAgainstList(t *testing.T) {
	pool := map[version]*records.Record{}
	var all []version
	for _, id := range []string{"a", "b", "c", "d"} {
		live := sign(t, id, 1, epoch())
		for _, r := range []*records.Record{live, bury(t, live, epoch())} {
			pool[versionOf(r)] = r
			all = append(all, versionOf(r))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		m := newScheduler(6*time.Hour, func() float64 { return 0.5 })
		d := &listScheduler{now: epoch(), due: map[version]time.Time{}, failures: map[version]int{}}
		pick := func() version { return rapid.SampledFrom(all).Draw(t, "version") }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				v := pick()
				m.add(pool[v], d.now)
				if _, ok := d.due[v]; !ok {
					d.due[v], d.failures[v] = d.now, 0
				}
			},
			"drop": func(t *rapid.T) {
				v := pick()
				m.drop(v)
				delete(d.due, v)
			},
			"announced": func(t *rapid.T) {
				v, complete := pick(), rapid.Bool().Draw(t, "complete")
				m.announced(v, complete, d.now)
				d.announced(pool[v], complete)
			},
			"take": func(t *rapid.T) {
				limit := rapid.IntRange(0, 5).Draw(t, "limit")
				taken := m.take(d.now, limit)
				d.check(t, taken, limit)
				for _, task := range taken {
					d.at(pool[task.version], d.now.Add(ackTimeout))
				}
			},
			"hand out": func(t *rapid.T) {
				v, failures := pick(), rapid.IntRange(0, 12).Draw(t, "failures")
				m.handOut(v, failures, d.now)
				if _, ok := d.due[v]; ok {
					d.failures[v] = failures
					d.at(pool[v], d.now.Add(ackTimeout))
				}
			},
			"wait": func(t *rapid.T) {
				d.now = d.now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
			},
			"sleep": func(t *rapid.T) {
				d.now = d.now.Add(time.Duration(rapid.IntRange(0, 7).Draw(t, "hours")) * time.Hour)
			},
			"": func(t *rapid.T) {
				next, ok := m.next()
				if ok != (len(d.due) > 0) {
					t.Fatalf("next: %v, %d tasks", ok, len(d.due))
				}
				for v, due := range d.due {
					if due.Before(next) {
						t.Fatalf("next is %v, %v is due at %v", next, v, due)
					}
				}
			},
		})
	})
}
