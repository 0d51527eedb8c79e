package registry

import (
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	// lease is how long a version that was handed out waits for its outcome before it is handed out again.
	lease = 30 * time.Second

	// After the nth announcement in a row that fell short the next one follows
	// backoffMin·2^(n-1) later, at most backoffMax.
	backoffMin = time.Second
	backoffMax = 5 * time.Minute

	// step is by how much the clock may go back unnoticed, and how far ahead of it a version
	// may have been signed. Together they are what peers forgive.
	step = records.ClockSkew / 2

	// spread is the share of an interval by which jitter makes it shorter or longer.
	spread = 0.1
)

// version names one signed version of one service.
type version struct {
	id       string
	sequence uint64
}

func versionOf(r *records.Record) version {
	return version{id: r.Name().ID, sequence: r.Sequence()}
}

// task is one version that is to be announced, again and again until it is superseded or
// has lapsed.
type task struct {
	version
	withdrawn bool
	issued    time.Time
	expires   time.Time
	due       time.Time // next announcement; of a withdrawn version never after expires while it lives
	renew     time.Time // from then on a live version must be replaced by a fresh one; at most half its life away
	failures  int       // announcements in a row that fell short
	slot      int       // in the queue
}

// lapsed reports whether there is nothing left to announce: a tombstone that nobody needs any more.
func (t *task) lapsed(now time.Time) bool { return t.withdrawn && !now.Before(t.expires) }

// stale reports whether the version must be replaced before it is announced again.
func (t *task) stale(now time.Time) bool { return !t.withdrawn && !now.Before(t.renew) }

// machine decides when which version is announced. It is pure: time is an argument, chance
// is injected, and equal calls give equal results. It is not safe for concurrent use.
//
// Invariants: queue and tasks hold the same tasks; the first of the queue is due first.
type machine struct {
	refresh time.Duration
	jitter  func() float64 // [0, 1)
	seen    time.Time      // the last time told, to notice a clock that is set back
	tasks   map[version]*task
	queue   *heap.Heap[*task]
}

func newMachine(refresh time.Duration, jitter func() float64) *machine {
	queue := heap.New((*task).before, func(t *task) *int { return &t.slot })
	return &machine{refresh: refresh, jitter: jitter, tasks: make(map[version]*task), queue: queue}
}

// add schedules a version for now. One that is known already keeps its schedule.
func (m *machine) add(r *records.Record, now time.Time) {
	m.observe(now)
	v := versionOf(r)
	if m.tasks[v] != nil {
		return
	}
	t := &task{version: v, withdrawn: r.Withdrawn(), issued: r.Issued(), expires: r.Expires(), due: now}
	if !t.withdrawn {
		t.renew = earlier(t.issued.Add(m.spread(m.refresh)), t.issued.Add(t.expires.Sub(t.issued)/2))
		t.distrust(now)
	}
	m.tasks[v] = t
	m.queue.Push(t)
}

// drop forgets a version.
func (m *machine) drop(v version) {
	if t := m.tasks[v]; t != nil {
		m.queue.Remove(t)
		delete(m.tasks, v)
	}
}

// take gives up to limit tasks that are due, the longest due first, and keeps each from
// being taken again until its outcome is known or its lease has passed.
func (m *machine) take(now time.Time, limit int) []task {
	m.observe(now)
	var due []task
	for len(due) < limit {
		t, ok := m.queue.Min()
		if !ok || t.due.After(now) {
			break
		}
		due = append(due, *t)
		m.postpone(t, now.Add(lease), now)
	}
	return due
}

// handOut leases v, which is given to a caller other than by take. The count of failures
// goes on from that of the version that it renews, if it does: a network that is down does
// not come up because a record was renewed.
func (m *machine) handOut(v version, failures int, now time.Time) {
	if t := m.tasks[v]; t != nil {
		t.failures = failures
		m.postpone(t, now.Add(lease), now)
	}
}

// deferRenewal lets a version live on that could not be replaced.
func (m *machine) deferRenewal(v version, now time.Time) {
	if t := m.tasks[v]; t != nil {
		t.renew = now.Add(backoffMax)
	}
}

// announced takes the outcome of an announcement. Versions that are not known, because a
// newer one took their place, are ignored.
func (m *machine) announced(v version, complete bool, now time.Time) {
	m.observe(now)
	t := m.tasks[v]
	switch {
	case t == nil:
	case !complete:
		t.failures++
		m.postpone(t, now.Add(m.spread(backoff(t.failures))), now)
	case t.withdrawn: // is told again: keepers come and go
		t.failures = 0
		m.postpone(t, now.Add(m.spread(m.refresh)), now)
	default:
		t.failures = 0
		m.postpone(t, t.renew, now)
	}
}

// next is when the first task is due.
func (m *machine) next() (time.Time, bool) {
	first, ok := m.queue.Min()
	if !ok {
		return time.Time{}, false
	}
	return first.due, true
}

// observe notices a clock that was set back by more than step, and keeps what is left of
// every interval as it was. Smaller steps only delay by themselves.
func (m *machine) observe(now time.Time) {
	back := m.seen.Sub(now)
	if m.seen.IsZero() || back <= 0 {
		m.seen = now
		return
	}
	if back <= step {
		return
	}
	m.seen = now
	for _, t := range m.queue.Items() {
		t.due = t.due.Add(-back)
		if !t.withdrawn {
			t.renew = t.renew.Add(-back)
			t.distrust(now)
		}
	}
	m.queue.Init(m.queue.Items())
}

// distrust has a version replaced at once that was signed in the future: others refuse it.
// It stays due when the clock goes back a little more.
func (t *task) distrust(now time.Time) {
	if t.issued.After(now.Add(step)) {
		t.renew, t.due = now.Add(-step), now.Add(-step)
	}
}

func (m *machine) postpone(t *task, due, now time.Time) {
	if t.withdrawn && now.Before(t.expires) {
		due = earlier(due, t.expires) // to be forgotten in time
	}
	t.due = due
	m.queue.Fix(t)
}

func (m *machine) spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 + spread*(2*m.jitter()-1)))
}

func backoff(failures int) time.Duration {
	d := backoffMin
	for ; failures > 1 && d < backoffMax; failures-- {
		d *= 2
	}
	return min(d, backoffMax)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// before orders tasks by due time. The version breaks ties, so that the order
// is deterministic.
func (t *task) before(other *task) bool {
	if c := t.due.Compare(other.due); c != 0 {
		return c < 0
	}
	if c := strings.Compare(t.id, other.id); c != 0 {
		return c < 0
	}
	return t.sequence < other.sequence
}
