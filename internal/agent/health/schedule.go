package health

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// FirstChecks bounds the first checks per second, which spreads the checks of a
// starting peer with many instances.
const FirstChecks = 1000

const (
	// slowAfter is the time until a check loses its worker.
	slowAfter = 250 * time.Millisecond
	// suspendedAfter the deadline, a check is void: the deadline ends all
	// checks, so this peer was suspended.
	suspendedAfter = 2 * time.Second
)

// slot returns the number of the last moment up to t.
func (e *entry) slot(t time.Duration) int64 {
	interval := e.plan.interval()
	return int64((t - e.phase + interval) / interval)
}

// moment returns the start of a slot.
func (e *entry) moment(slot int64) time.Duration {
	return e.phase + time.Duration(slot-1)*e.plan.interval()
}

// schedule starts due checks until Close.
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

// pass starts all possible checks and returns the time until the next pass.
func (c *Checker) pass() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.elapsed()
	c.collect(now)
	c.admitPrompt(now)
	c.admitSuspects()
	next := time.Hour
	if first, ok := c.waiting.Min(); ok {
		next = first.due - now
	}
	if c.prompt.Len() > 0 && c.slow < c.cfg.Slow {
		next = min(next, oldest(c.running).started+slowAfter-now)
	}
	return max(next, 0)
}

// collect moves due entries to the queue of their lane. A very late entry waits
// for its next moment, but not twice in a row: a peer that is always late still
// checks.
func (c *Checker) collect(now time.Duration) {
	for {
		e, ok := c.waiting.Min()
		if !ok || e.due > now {
			break
		}
		if late := now-e.due > e.plan.interval()/2; late && !e.postponed {
			e.postponed = true
			e.due = e.moment(e.slot(now) + 1)
			c.waiting.Fix(e)
			continue
		}
		e.postponed = false
		c.waiting.Remove(e)
		e.list = c.prompt
		if e.slow {
			e.list = c.suspect
		}
		e.place = e.list.PushBack(e)
	}
}

// admitPrompt assigns workers. It frees one by moving the longest running
// check, after slowAfter, to the slow lane.
func (c *Checker) admitPrompt(now time.Duration) {
	for c.prompt.Len() > 0 {
		if c.running.Len() >= c.cfg.Workers {
			r := oldest(c.running)
			if now-r.started < slowAfter || c.slow >= c.cfg.Slow {
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

// admitSuspects starts checks of slow targets in up to half of the slow lane.
func (c *Checker) admitSuspects() {
	for c.suspect.Len() > 0 && c.slow < c.cfg.Slow/2 {
		c.slow++
		go c.run(c.begin(c.suspect.Front(), c.elapsed()))
	}
}

// run is one running check. It occupies a worker or a place in the slow lane.
type run struct {
	entry   *entry
	plan    *plan
	ctx     context.Context
	slot    int64
	started time.Duration
	worker  *list.Element // guarded by Checker.mu; nil: in the slow lane
}

func oldest(running *list.List) *run { return running.Front().Value.(*run) }

// begin takes an entry from its queue. The caller holds mu.
func (c *Checker) begin(place *list.Element, now time.Duration) *run {
	e := place.Value.(*entry)
	e.list.Remove(place)
	e.list, e.place = nil, nil
	r := &run{entry: e, plan: e.plan, slot: e.slot(now), started: now}
	r.ctx, e.cancel = context.WithTimeout(c.ctx, e.plan.target.Check.Timeout)
	c.checks.Add(1)
	return r
}

// run runs one check, reports it and schedules the target's next one.
func (c *Checker) run(r *run) {
	defer c.checks.Done()
	start := c.cfg.Now()
	err := c.probe(r.ctx, r.plan)
	end := c.cfg.Now()
	// The wall clock advances during a suspension of the host; the monotonic
	// clock may not.
	took := end.Sub(start)
	slept := max(took, end.Round(0).Sub(start.Round(0))) > r.plan.target.Check.Timeout+suspendedAfter
	if report, ok := c.settle(r, outcome{at: end, took: took, err: err, void: slept || probe.Lacking(err)}); ok {
		c.report(r, report)
	}
	c.finish(r)
}

// outcome is the end of a check.
type outcome struct {
	at   time.Time
	took time.Duration
	err  error
	void bool
}

// settle adds an outcome to the target's history and returns its report. A
// target removed or replaced meanwhile and a void check have none.
func (c *Checker) settle(r *run, o outcome) (Report, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := r.entry
	e.cancel()
	e.slow = o.took > slowAfter
	if o.void || !c.holds(e) || c.ctx.Err() != nil {
		return Report{}, false
	}
	passing := o.err == nil
	e.state.advance(passing, r.plan.rules)
	status := e.state.status()
	if e.window != nil {
		e.window.add(r.slot, o, status)
	}
	report := Report{
		Key: r.plan.target.Key, At: o.at, Took: o.took, Passing: passing,
		Status: status, Changed: status != e.reported, Damped: e.state.damped(), Err: o.err,
	}
	e.reported = status
	e.remember(instances.LastCheck{
		At: o.at.UTC(), TookMs: float64(o.took) / float64(time.Millisecond), Passing: passing, State: string(found(o.err)), Status: status, Cause: cause(o.err),
	})
	return report, true
}

// holds reports whether an entry is the present one of its key. The caller
// holds mu.
func (c *Checker) holds(e *entry) bool { return c.targets[e.plan.target.Key] == e }

func (c *Checker) report(r *run, report Report) {
	if report.Changed && report.Status != instance.StatusUnknown {
		c.cfg.Logger.Info("the health of an instance changed", "instance", report.Key.String(),
			"status", report.Status.String(), "damped", report.Damped, "cause", cause(report.Err))
	}
	c.cfg.Report(report)
}

// found says what a check found, in the words for the endpoints of offers. A script that fails refuses.
func found(err error) probe.State {
	var says refusal
	var exit *exec.ExitError
	switch kind := fault.KindOf(err); {
	case err == nil:
		return probe.Answers
	case errors.As(err, &says), errors.As(err, &exit):
		return probe.Refuses
	case kind == fault.Timeout:
		return probe.Silent
	case kind == fault.Forbidden:
		return probe.Unmeasured
	}
	return cmp.Or(probe.Interpret(err).State, probe.Unmeasured)
}

// refusal is an answer that says that the target does not serve.
type refusal struct{ error }

func refused(op, format string, args ...any) error {
	return fault.As(op, fault.Unavailable, refusal{fmt.Errorf(format, args...)})
}

// cause is the message of an error, which may hold words of the target.
func cause(err error) string {
	const most = 200 // bytes
	if err == nil {
		return ""
	}
	return clean.Text(fault.Message(err), most)
}

// finish frees the place in the lane and schedules the target's next moment.
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
		e.due = e.moment(e.slot(c.elapsed()) + 1)
		c.waiting.Push(e)
	}
	if c.prompt.Len()+c.suspect.Len() > 0 || e.index == 0 {
		c.nudge()
	}
}
