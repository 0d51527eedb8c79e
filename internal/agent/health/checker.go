package health

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Checker checks targets until Close. It is safe for concurrent use.
type Checker struct {
	cfg    Config
	prober *probe.Prober // its lines alone
	policy probe.Policy
	epoch  time.Time // start of the schedule, with a monotonic reading if the clock has one

	ctx    context.Context // parent of all checks
	cancel context.CancelFunc
	wake   chan struct{}  // wakes the scheduler before its timer
	done   chan struct{}  // closed at the end of the scheduler
	checks sync.WaitGroup // running checks; only the scheduler adds

	mu       sync.Mutex // guards the fields below and all entries; held for one scheduler pass at most
	targets  map[instance.Key]*entry
	waiting  *heap.Heap[*entry] // by due moment
	prompt   *list.List         // due, fast at the last check: first come, first served
	suspect  *list.List         // due, slow at the last check
	running  *list.List         // checks with a worker, longest running first
	slow     int                // number of checks in the slow lane
	firstDue time.Duration      // moment of the next first check
	closed   bool
}

// entry is a target with its history. It is in Checker.waiting, in one of the
// lists prompt and suspect, or has a running check.
type entry struct {
	plan      *plan
	phase     time.Duration // in [0, interval)
	due       time.Duration // since the epoch
	index     int           // in Checker.waiting; -1: elsewhere
	list      *list.List    // list with this entry; nil: elsewhere
	place     *list.Element
	cancel    context.CancelFunc    // of the running check; nil: none
	window    *window               // nil: unmeasured
	last      []instances.LastCheck // newest first
	state     checkState
	reported  instance.Status // status of the last report
	slow      bool            // the last check took longer than slowAfter
	postponed bool            // skipped its last moment
}

// New starts a Checker without targets.
func New(cfg Config) *Checker {
	cfg = cfg.withDefaults()
	c := &Checker{
		cfg:     cfg,
		prober:  probe.New(probe.Config{Dial: cfg.Dial, Resolve: cfg.Resolve, Trusted: true}),
		policy:  probe.NewPolicy(),
		epoch:   cfg.Now(),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		targets: make(map[instance.Key]*entry),
		prompt:  list.New(),
		suspect: list.New(),
		running: list.New(),
	}
	c.waiting = heap.New(func(a, b *entry) bool { return a.due < b.due }, func(e *entry) *int { return &e.index })
	c.ctx, c.cancel = context.WithCancel(context.Background())
	go c.schedule()
	return c
}

// Validate returns the errors of Set, the limit aside.
func (c *Checker) Validate(t Target) error {
	_, err := c.newPlan(t)
	return fault.Wrap("health.Validate", err)
}

// Set adds or replaces a target. With the same check, host and port it
// continues; otherwise it starts again with an unknown status. The first check
// starts at once, or with many new targets in turn at FirstChecks per second,
// and no later than the target's first moment. Errors: Invalid, field
// "health_check" or below; PoolExhausted; Unavailable after Close.
func (c *Checker) Set(t Target) error {
	const op = "health.Set"
	p, err := c.newPlan(t)
	if err != nil {
		return fault.Wrap(op, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.targets[t.Key]
	switch {
	case c.closed:
		return fault.New(op, fault.Unavailable, "the checker is closed")
	case old != nil && old.plan.same(p):
		old.plan = p
		old.measure()
		return nil
	case old == nil && len(c.targets) >= c.cfg.Targets:
		return fault.Exhausted(op, "checks", false, "this peer checks %d instances, its limit: raise agent.limits.instances", c.cfg.Targets)
	case old != nil:
		c.drop(old)
	}
	e := &entry{
		plan:  p,
		phase: time.Duration(c.cfg.Random() % uint64(p.interval())),
		index: -1,
	}
	e.measure()
	c.first(e)
	c.targets[t.Key] = e
	c.waiting.Push(e)
	c.nudge()
	return nil
}

// measure starts or ends the window of an entry. The caller holds mu.
func (e *entry) measure() {
	switch {
	case e.plan.target.Unmeasured:
		e.window = nil
	case e.window == nil:
		e.window = newWindow(e.plan.interval())
	}
}

// first sets the due time of a new entry. The caller holds mu.
func (c *Checker) first(e *entry) {
	now := c.elapsed()
	turn := max(now, c.firstDue)
	if e.due = e.moment(e.slot(now) + 1); e.due > turn {
		e.due = turn
		c.firstDue = turn + time.Second/FirstChecks
	}
}

// Remove ends the checks of a target. A running check is cancelled without a
// result; an earlier Report may still run. An unknown key has no effect.
func (c *Checker) Remove(k instance.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.targets[k]; e != nil {
		c.drop(e)
		delete(c.targets, k)
	}
}

// drop removes an entry from its place. The caller holds mu.
func (c *Checker) drop(e *entry) {
	switch {
	case e.index >= 0:
		c.waiting.Remove(e)
	case e.list != nil:
		e.list.Remove(e.place)
	case e.cancel != nil:
		e.cancel()
	}
}

// Measured returns the measurements of a target; false for an unknown or
// Unmeasured one.
func (c *Checker) Measured(k instance.Key) (Measured, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.targets[k]
	if e == nil || e.window == nil {
		return Measured{}, false
	}
	return e.window.measure(e.slot(c.elapsed())), true
}

// Last returns the ends of the last checks of a target, newest first.
func (c *Checker) Last(k instance.Key) []instances.LastCheck {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.targets[k]; e != nil {
		return slices.Clone(e.last)
	}
	return nil
}

// remember adds the end of a check, in place of the oldest one. The same cause again takes no more memory. The caller
// holds mu.
func (e *entry) remember(end instances.LastCheck) {
	if e.last == nil {
		e.last = make([]instances.LastCheck, 0, instances.MaxLastChecks)
	}
	if len(e.last) > 0 && e.last[0].Cause == end.Cause {
		end.Cause = e.last[0].Cause
	}
	e.last = e.last[:min(len(e.last)+1, instances.MaxLastChecks)]
	copy(e.last[1:], e.last)
	e.last[0] = end
}

// Close cancels all checks, then waits for them and their Reports. It may be
// called again.
func (c *Checker) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	<-c.done
	c.checks.Wait()
}

// elapsed is the time of the schedule.
func (c *Checker) elapsed() time.Duration { return c.cfg.Now().Sub(c.epoch) }

// nudge wakes the scheduler.
func (c *Checker) nudge() {
	pause.Wake(c.wake)
}
