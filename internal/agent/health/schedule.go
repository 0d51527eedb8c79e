package health

import (
	"container/list"
	"context"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// FirstChecks bounds the first checks a second, so that those of a peer that starts with many
// instances do not come all at once.
const FirstChecks = 1000

const (
	// patience is how long a check may hold a worker.
	patience = 250 * time.Millisecond
	// pause beyond its deadline makes a check void: the deadline itself ends every check, so this
	// peer was not running.
	pause = 2 * time.Second
)

// slot numbers the moments of an entry's schedule: the last one that was not after t.
func (e *entry) slot(t time.Duration) int64 {
	interval := e.plan.interval()
	return int64((t - e.phase + interval) / interval)
}

// moment is when a slot begins.
func (e *entry) moment(slot int64) time.Duration {
	return e.phase + time.Duration(slot-1)*e.plan.interval()
}

// schedule starts what is due until the Checker closes.
func (c *Checker) schedule() {
	defer close(c.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		timer.Reset(c.pass())
	}
}

// pass starts all that can be started and gives the time until there may be more.
func (c *Checker) pass() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.elapsed()
	c.collect(now)
	c.admitPrompt(now)
	c.admitSuspects()
	next := time.Hour
	if first, ok := c.agenda.Min(); ok {
		next = first.due - now
	}
	if c.prompt.Len() > 0 && c.slow < c.cfg.Slow {
		next = min(next, oldest(c.running).started+patience-now)
	}
	return max(next, 0)
}

// collect moves what is due from the agenda to its lane's queue. What is very late waits for its
// next moment instead, but not twice: a peer that is always late still checks.
func (c *Checker) collect(now time.Duration) {
	skipped := 0
	for {
		e, ok := c.agenda.Min()
		if !ok || e.due > now {
			break
		}
		if late := now-e.due > e.plan.interval()/2; late && !e.excused {
			e.excused = true
			next := e.slot(now) + 1
			skipped += int(next - e.slot(e.due))
			e.due = e.moment(next)
			c.agenda.Fix(e)
			continue
		}
		e.excused = false
		c.agenda.Remove(e)
		e.list = c.prompt
		if e.tardy {
			e.list = c.suspect
		}
		e.place = e.list.PushBack(e)
	}
	if skipped > 0 {
		c.cfg.Recorder.Skipped(skipped)
	}
}

// admitPrompt gives workers to those who wait for one, and makes room by moving the check that has
// been running longest, beyond patience, to the lane of slow ones.
func (c *Checker) admitPrompt(now time.Duration) {
	for c.prompt.Len() > 0 {
		if c.running.Len() >= c.cfg.Workers {
			r := oldest(c.running)
			if now-r.started < patience || c.slow >= c.cfg.Slow {
				return
			}
			c.running.Remove(r.worker)
			r.worker = nil
			c.slow++
		}
		r := c.begin(c.prompt.Front(), now)
		r.worker = c.running.PushBack(r)
		go c.run(r)
	}
}

// admitSuspects lets those in that were slow the last time, up to half of their lane.
func (c *Checker) admitSuspects() {
	for c.suspect.Len() > 0 && c.slow < c.cfg.Slow/2 {
		c.slow++
		go c.run(c.begin(c.suspect.Front(), c.elapsed()))
	}
}

// run is one check under way. It holds a place in a lane: worker, or one of Checker.slow.
type run struct {
	entry   *entry
	plan    *plan
	ctx     context.Context
	slot    int64
	started time.Duration
	worker  *list.Element // guarded by Checker.mu; nil: in the lane of slow ones
}

func oldest(running *list.List) *run { return running.Front().Value.(*run) }

// begin takes an entry from its queue. Called with mu.
func (c *Checker) begin(place *list.Element, now time.Duration) *run {
	e := place.Value.(*entry)
	e.list.Remove(place)
	e.list, e.place = nil, nil
	r := &run{entry: e, plan: e.plan, slot: e.slot(now), started: now}
	r.ctx, e.cancel = context.WithTimeout(c.ctx, e.plan.target.Check.Timeout)
	c.checks.Add(1)
	return r
}

// run makes one check, reports it, and puts the target back on the agenda.
func (c *Checker) run(r *run) {
	defer c.checks.Done()
	start := c.cfg.Now()
	err := c.probe(r.ctx, r.plan)
	end := c.cfg.Now()
	// The wall clock goes on while a suspended host's monotonic clock may not.
	took := end.Sub(start)
	slept := max(took, end.Round(0).Sub(start.Round(0))) > r.plan.target.Check.Timeout+pause
	if report, ok := c.settle(r, outcome{at: end, took: took, err: err, void: slept || ours(err)}); ok {
		c.tell(r, report)
	}
	c.finish(r)
}

// outcome is how a check ended.
type outcome struct {
	at   time.Time
	took time.Duration
	err  error
	void bool
}

// settle takes the outcome into the history of the target and gives the report of it, if there is one
// to give: none for a target that was removed or replaced meanwhile, nor for a void check.
func (c *Checker) settle(r *run, o outcome) (Report, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := r.entry
	e.cancel()
	e.tardy = o.took > patience
	if o.void {
		c.cfg.Recorder.Skipped(1)
	}
	if o.void || !c.holds(e) || c.ctx.Err() != nil {
		return Report{}, false
	}
	passing := o.err == nil
	e.verdict.advance(passing, r.plan.rules)
	status := e.verdict.status()
	if e.window != nil {
		e.window.add(r.slot, o, status)
	}
	report := Report{
		Key: r.plan.target.Key, At: o.at, Took: o.took, Passing: passing,
		Status: status, Changed: status != e.told, Damped: e.verdict.damped(), Err: o.err,
	}
	e.told = status
	return report, true
}

// holds reports whether an entry is the one of its key. Called with mu.
func (c *Checker) holds(e *entry) bool { return c.targets[e.plan.target.Key] == e }

func (c *Checker) tell(r *run, report Report) {
	c.cfg.Recorder.Checked(r.plan.target.Check.Type, report.Passing, report.Took)
	if report.Changed && report.Status != instance.StatusUnknown {
		c.cfg.Logger.Info("health of an instance changed", "instance", report.Key.String(),
			"status", report.Status.String(), "damped", report.Damped, "cause", cause(report.Err))
	}
	c.cfg.Report(report)
}

func cause(err error) string {
	if err == nil {
		return ""
	}
	return fault.Message(err)
}

// finish gives the place in the lane back, and the target its next moment: the first that is still
// to come.
func (c *Checker) finish(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.worker != nil {
		c.running.Remove(r.worker)
	} else {
		c.slow--
	}
	e := r.entry
	e.cancel = nil
	if c.holds(e) {
		next := e.slot(c.elapsed()) + 1
		if missed := next - r.slot - 1; missed > 0 {
			c.cfg.Recorder.Skipped(int(missed))
		}
		e.due = e.moment(next)
		c.agenda.Push(e)
	}
	if c.prompt.Len()+c.suspect.Len() > 0 || e.index == 0 {
		c.nudge()
	}
}
