package registry

import (
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	// ackTimeout is how long a version that was handed out waits for its outcome before it is handed out again.
	ackTimeout = 30 * time.Second

	// After the nth announcement in a row that fell short the next one follows
	// backoffMin·2^(n-1) later, at most backoffMax.
	backoffMin = time.Second
	backoffMax = 5 * time.Minute

	// clockTolerance is by how much the clock may go back unnoticed, and how far ahead of it a version
	// may have been signed. Together they are what peers forgive.
	clockTolerance = records.ClockSkew / 2

	// jitterShare is the share of an interval by which jitter makes it shorter or longer.
	jitterShare = 0.1
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

// scheduler decides when which version is announced. It is pure: time is an argument, chance
// is injected, and equal calls give equal results. It is not safe for concurrent use.
//
// Invariants: queue and tasks hold the same tasks; the first of the queue is due first.
type scheduler struct {
	refresh time.Duration
	jitter  func() float64 // [0, 1)
	lastNow time.Time      // the last time told, to notice a clock that is set back
	tasks   map[version]*task
	queue   *heap.Heap[*task]
}

func newScheduler(refresh time.Duration, jitter func() float64) *scheduler {
	queue := heap.New((*task).before, func(t *task) *int { return &t.slot })
	return &scheduler{refresh: refresh, jitter: jitter, tasks: make(map[version]*task), queue: queue}
}

// add schedules a version for now. One that is known already keeps its schedule.
func (m *scheduler) add(r *records.Record, now time.Time) {
	m.observe(now)
	v := versionOf(r)
	if m.tasks[v] != nil {
		return
	}
	t := &task{version: v, withdrawn: r.Withdrawn(), issued: r.Issued(), expires: r.Expires(), due: now}
	if !t.withdrawn {
		t.renew = earlier(t.issued.Add(m.jittered(m.refresh)), t.issued.Add(t.expires.Sub(t.issued)/2))
		t.replaceIfFuture(now)
	}
	m.tasks[v] = t
	m.queue.Push(t)
}

// drop forgets a version.
func (m *scheduler) drop(v version) {
	if t := m.tasks[v]; t != nil {
		m.queue.Remove(t)
		delete(m.tasks, v)
	}
}

// take gives up to limit tasks that are due, the longest due first, and keeps each from
// being taken again until its outcome is known or its lease has passed.
func (m *scheduler) take(now time.Time, limit int) []task {
	m.observe(now)
	var due []task
	for len(due) < limit {
		t, ok := m.queue.Min()
		if !ok || t.due.After(now) {
			break
		}
		due = append(due, *t)
		m.postpone(t, now.Add(ackTimeout), now)
	}
	return due
}

// handOut leases v, which is given to a caller other than by take. The count of failures
// goes on from that of the version that it renews, if it does: a network that is down does
// not come up because a record was renewed.
func (m *scheduler) handOut(v version, failures int, now time.Time) {
	if t := m.tasks[v]; t != nil {
		t.failures = failures
		m.postpone(t, now.Add(ackTimeout), now)
	}
}

// deferRenewal lets a version live on that could not be replaced.
func (m *scheduler) deferRenewal(v version, now time.Time) {
	if t := m.tasks[v]; t != nil {
		t.renew = now.Add(backoffMax)
	}
}

// announced takes the outcome of an announcement. Versions that are not known, because a
// newer one took their place, are ignored.
func (m *scheduler) announced(v version, complete bool, now time.Time) {
	m.observe(now)
	t := m.tasks[v]
	switch {
	case t == nil:
	case !complete:
		t.failures++
		m.postpone(t, now.Add(m.jittered(backoff(t.failures))), now)
	case t.withdrawn: // is told again: keepers come and go
		t.failures = 0
		m.postpone(t, now.Add(m.jittered(m.refresh)), now)
	default:
		t.failures = 0
		m.postpone(t, t.renew, now)
	}
}

// next is when the first task is due.
func (m *scheduler) next() (time.Time, bool) {
	first, ok := m.queue.Min()
	if !ok {
		return time.Time{}, false
	}
	return first.due, true
}

// observe notices a clock that was set back by more than step, and keeps what is left of
// every interval as it was. Smaller steps only delay by themselves.
func (m *scheduler) observe(now time.Time) {
	back := m.lastNow.Sub(now)
	if m.lastNow.IsZero() || back <= 0 {
		m.lastNow = now
		return
	}
	if back <= clockTolerance {
		return
	}
	m.lastNow = now
	for _, t := range m.queue.Items() {
		t.due = t.due.Add(-back)
		if !t.withdrawn {
			t.renew = t.renew.Add(-back)
			t.replaceIfFuture(now)
		}
	}
	m.queue.Init(m.queue.Items())
}

// replaceIfFuture has a version replaced at once that was signed in the future: others refuse it.
// It stays due when the clock goes back a little more.
func (t *task) replaceIfFuture(now time.Time) {
	if t.issued.After(now.Add(clockTolerance)) {
		t.renew, t.due = now.Add(-clockTolerance), now.Add(-clockTolerance)
	}
}

func (m *scheduler) postpone(t *task, due, now time.Time) {
	if t.withdrawn && now.Before(t.expires) {
		due = earlier(due, t.expires) // to be forgotten in time
	}
	t.due = due
	m.queue.Fix(t)
}

func (m *scheduler) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 + jitterShare*(2*m.jitter()-1)))
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
