package offers

import (
	"slices"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	// ackTimeout is the time after which a version without an outcome is handed out again.
	ackTimeout = 30 * time.Second

	// After n consecutive incomplete announcements, the next follows after backoffMin·2^(n-1), at most
	// backoffMax.
	backoffMin = time.Second
	backoffMax = 5 * time.Minute

	// clockTolerance is the unnoticed step of the clock backwards, and the tolerated lead of a version's
	// signature. Together they equal the clock skew that peers tolerate.
	clockTolerance = records.ClockSkew / 2

	// jitterShare is the share of an interval by which jitter shortens or extends it.
	jitterShare = 0.1
)

// version identifies one signed version of one service.
type version struct {
	id       string
	sequence uint64
}

func versionOf(r *records.Record) version {
	return version{id: r.Name().ID, sequence: r.Sequence()}
}

// task is one version, announced repeatedly until a newer one supersedes it or it lapses.
type task struct {
	version
	withdrawn bool
	issued    time.Time
	expires   time.Time
	due       time.Time // next announcement; for a live tombstone never after expires
	renew     time.Time // end of use of a live version, at most half of its life away
	failures  int       // consecutive incomplete announcements
	unstored  bool      // no keeper took the last announcement
	spread    bool      // all keepers took the last announcement
	slot      int       // in the queue
}

// lapsed reports whether the tombstone has expired, so that its announcement has no purpose.
func (t *task) lapsed(now time.Time) bool { return t.withdrawn && !now.Before(t.expires) }

// stale reports whether the version needs a replacement before its next announcement.
func (t *task) stale(now time.Time) bool { return !t.withdrawn && !now.Before(t.renew) }

// scheduler schedules the announcements of versions. It is deterministic: time is an argument, jitter is
// injected. It is not safe for concurrent use.
//
// Invariants: queue and tasks hold the same tasks; the head of the queue is due first.
type scheduler struct {
	refresh time.Duration
	jitter  func() float64 // in [0, 1)
	lastNow time.Time      // latest time argument, detects a clock that was set back
	tasks   map[version]*task
	queue   *heap.Heap[*task]
}

func newScheduler(refresh time.Duration, jitter func() float64) *scheduler {
	queue := heap.New((*task).before, func(t *task) *int { return &t.slot })
	return &scheduler{refresh: refresh, jitter: jitter, tasks: make(map[version]*task), queue: queue}
}

// add schedules a version for now. A known version keeps its schedule.
func (s *scheduler) add(r *records.Record, now time.Time) {
	s.observe(now)
	v := versionOf(r)
	if s.tasks[v] != nil {
		return
	}
	t := &task{version: v, withdrawn: r.Withdrawn(), issued: r.Issued(), expires: r.Expires(), due: now}
	if !t.withdrawn {
		t.renew = earlier(t.issued.Add(s.jittered(s.refresh)), t.issued.Add(t.expires.Sub(t.issued)/2))
		if p := r.Paused(); p != nil && !p.Until.IsZero() {
			t.renew = earlier(t.renew, p.Until)
		}
		t.replaceIfFuture(now)
	}
	s.tasks[v] = t
	s.queue.Push(t)
}

// renewNow makes a live version stale.
func (s *scheduler) renewNow(v version, now time.Time) {
	if t := s.tasks[v]; t != nil && !t.withdrawn {
		t.renew = now
	}
}

// drop removes a version.
func (s *scheduler) drop(v version) {
	if t := s.tasks[v]; t != nil {
		s.queue.Remove(t)
		delete(s.tasks, v)
	}
}

// take returns up to limit due tasks, the longest due first. A taken task is not due until its outcome or the
// ack timeout.
func (s *scheduler) take(now time.Time, limit int) []task {
	s.observe(now)
	var due []task
	for len(due) < limit {
		t, ok := s.queue.Min()
		if !ok || t.due.After(now) {
			break
		}
		due = append(due, *t)
		s.postpone(t, now.Add(ackTimeout), now)
	}
	return due
}

// handOut postpones a version that a caller of Register, Update or Withdraw received. failures continues the
// count of the renewed version: a new signature does not repair the network.
func (s *scheduler) handOut(v version, failures int, now time.Time) {
	if t := s.tasks[v]; t != nil {
		t.failures = failures
		s.postpone(t, now.Add(ackTimeout), now)
	}
}

// deferRenewal keeps a version whose replacement failed.
func (s *scheduler) deferRenewal(v version, now time.Time) {
	if t := s.tasks[v]; t != nil {
		t.renew = now.Add(backoffMax)
	}
}

// announced handles the outcome of an announcement. It ignores superseded versions.
func (s *scheduler) announced(v version, complete bool, now time.Time) {
	s.observe(now)
	t := s.tasks[v]
	if t == nil {
		return
	}
	t.spread = complete
	switch {
	case !complete:
		t.failures++
		s.postpone(t, now.Add(s.jittered(backoff(t.failures))), now)
	case t.withdrawn: // repeated, because keepers change
		t.failures = 0
		s.postpone(t, now.Add(s.jittered(s.refresh)), now)
	default:
		t.failures = 0
		s.postpone(t, t.renew, now)
	}
}

// report notes how many keepers hold an announced version.
func (s *scheduler) report(v version, keepers int) {
	if t := s.tasks[v]; t != nil {
		t.unstored = keepers == 0
	}
}

// unstored returns the ids of the live versions that no keeper holds, in order.
func (s *scheduler) unstored() []string {
	var ids []string
	for v, t := range s.tasks {
		if t.unstored && !t.withdrawn {
			ids = append(ids, v.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// announcing counts the versions, tombstones included, that not all keepers took.
func (s *scheduler) announcing() int {
	n := 0
	for _, t := range s.tasks {
		if !t.spread {
			n++
		}
	}
	return n
}

// next is the time of the first due task.
func (s *scheduler) next() (time.Time, bool) {
	first, ok := s.queue.Min()
	if !ok {
		return time.Time{}, false
	}
	return first.due, true
}

// observe detects a clock set back by more than clockTolerance and keeps the rest of each interval. Smaller
// steps only cause a delay.
func (s *scheduler) observe(now time.Time) {
	back := s.lastNow.Sub(now)
	if s.lastNow.IsZero() || back <= 0 {
		s.lastNow = now
		return
	}
	if back <= clockTolerance {
		return
	}
	s.lastNow = now
	for _, t := range s.queue.Items() {
		t.due = t.due.Add(-back)
		if !t.withdrawn {
			t.renew = t.renew.Add(-back)
			t.replaceIfFuture(now)
		}
	}
	s.queue.Init(s.queue.Items())
}

// replaceIfFuture schedules the replacement of a version with a signature in the future, which peers refuse.
// The task stays due if the clock goes back a little further.
func (t *task) replaceIfFuture(now time.Time) {
	if t.issued.After(now.Add(clockTolerance)) {
		t.renew, t.due = now.Add(-clockTolerance), now.Add(-clockTolerance)
	}
}

func (s *scheduler) postpone(t *task, due, now time.Time) {
	if t.withdrawn && now.Before(t.expires) {
		due = earlier(due, t.expires) // to delete it in time
	}
	t.due = due
	s.queue.Fix(t)
}

func (s *scheduler) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 + jitterShare*(2*s.jitter()-1)))
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

// before orders tasks by due time, then by version, so that the order is deterministic.
func (t *task) before(other *task) bool {
	if c := t.due.Compare(other.due); c != 0 {
		return c < 0
	}
	if c := strings.Compare(t.id, other.id); c != 0 {
		return c < 0
	}
	return t.sequence < other.sequence
}
