package health

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/platform/heap"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Checker checks targets until it is closed. Its methods may be called at the same time.
type Checker struct {
	cfg     Config
	network *network
	epoch   time.Time // from which the schedule counts, monotonic where the clock is

	ctx    context.Context // of all checks
	cancel context.CancelFunc
	wake   chan struct{}  // there is something to do before the scheduler's timer
	done   chan struct{}  // the scheduler has ended
	checks sync.WaitGroup // under way; only the scheduler adds

	mu       sync.Mutex // guards all below and the entries; held for no longer than one pass over what is due
	targets  map[instance.Key]*entry
	agenda   *heap.Heap[*entry] // waiting entries by due moment
	prompt   *list.List         // due, and quick the last time: first come, first served
	suspect  *list.List         // due, and slow the last time
	running  *list.List         // in the lane of workers, longest running first
	slow     int                // in the lane of slow ones
	firstDue time.Duration      // moment of the next first check
	closed   bool
}

// entry is one target with its history. It is in the agenda, or in one of the lists prompt and
// suspect, or being checked.
type entry struct {
	plan    *plan
	phase   time.Duration // in [0, interval)
	due     time.Duration // since the epoch
	index   int           // in the agenda; -1: elsewhere
	list    *list.List    // where it waits for a worker; nil: elsewhere
	place   *list.Element
	cancel  context.CancelFunc // of its check; nil: none under way
	window  *window            // nil: unmeasured
	verdict verdict
	told    instance.Status // the verdict of the last report
	tardy   bool            // the last check took longer than patience
	excused bool            // it was too late for its last moment
}

// New starts a Checker without targets. Errors: Invalid, by the field of Config.
func New(cfg Config) (*Checker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fault.Wrap("health.New", err)
	}
	c := &Checker{
		cfg:     cfg,
		network: newNetwork(cfg),
		epoch:   cfg.Now(),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		targets: make(map[instance.Key]*entry),
		prompt:  list.New(),
		suspect: list.New(),
		running: list.New(),
	}
	c.agenda = heap.New(func(a, b *entry) bool { return a.due < b.due }, func(e *entry) *int { return &e.index })
	c.ctx, c.cancel = context.WithCancel(context.Background())
	go c.schedule()
	return c, nil
}

// Validate says what Set would say of a target, but for the bound.
func (c *Checker) Validate(t Target) error {
	_, err := c.newPlan(t)
	return fault.Wrap("health.Validate", err)
}

// Set adds a target, or replaces the one of the same key. One with the same check, host and port
// goes on as it was; any other starts anew and unknown. The first check is made at once, or, when
// many are set together, FirstChecks a second in their order, but no later than the first moment of
// the target's schedule. Errors: Invalid, field
// "health_check" or below; LimitReached; Unavailable when closed.
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
		return fault.New(op, fault.Unavailable, "closed")
	case old != nil && old.plan.same(p):
		old.plan = p
		old.measure()
		return nil
	case old == nil && len(c.targets) >= c.cfg.Targets:
		return fault.New(op, fault.LimitReached, "%d instances are checked already", c.cfg.Targets)
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
	c.agenda.Push(e)
	c.nudge()
	return nil
}

// measure begins to keep what checks say, or ends it. Called with mu.
func (e *entry) measure() {
	switch {
	case e.plan.target.Unmeasured:
		e.window = nil
	case e.window == nil:
		e.window = newWindow(e.plan.interval())
	}
}

// first sets when a new entry is due. Called with mu.
func (c *Checker) first(e *entry) {
	now := c.elapsed()
	turn := max(now, c.firstDue)
	if e.due = e.moment(e.slot(now) + 1); e.due > turn {
		e.due = turn
		c.firstDue = turn + time.Second/FirstChecks
	}
}

// Remove ends the checks of a target. A check that is under way is cancelled and has no result,
// but a Report that began before may still be going on. It does nothing for an unknown key.
func (c *Checker) Remove(k instance.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.targets[k]; e != nil {
		c.drop(e)
		delete(c.targets, k)
	}
}

// drop takes an entry from wherever it is. Called with mu.
func (c *Checker) drop(e *entry) {
	switch {
	case e.index >= 0:
		c.agenda.Remove(e)
	case e.list != nil:
		e.list.Remove(e.place)
	case e.cancel != nil:
		e.cancel()
	}
}

// Measured gives what the checks of a target say; false for one that is not set, or Unmeasured.
func (c *Checker) Measured(k instance.Key) (Measured, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.targets[k]
	if e == nil || e.window == nil {
		return Measured{}, false
	}
	return e.window.measure(e.slot(c.elapsed())), true
}

// Close ends all checks and waits for them and for the Reports that are under way. It always
// succeeds, and may be called again.
func (c *Checker) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	<-c.done
	c.checks.Wait()
	return nil
}

// elapsed is the time of the schedule.
func (c *Checker) elapsed() time.Duration { return c.cfg.Now().Sub(c.epoch) }

// nudge makes the scheduler look again.
func (c *Checker) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
