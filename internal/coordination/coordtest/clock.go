package coordtest

import (
	"sync"
	"time"
)

// Clock is a clock that only Advance moves, from the zero Time.
type Clock struct {
	mu     sync.Mutex // guards what follows
	now    time.Time
	timers []*timer
}

type timer struct {
	at time.Time
	f  func()
}

// Now tells the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After makes the Advance that reaches d from now call f. The returned function prevents the call and
// reports its success.
func (c *Clock) After(d time.Duration, f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{c.now.Add(d), f}
	c.timers = append(c.timers, t)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.drop(t)
	}
}

func (c *Clock) drop(t *timer) bool {
	for i, other := range c.timers {
		if other == t {
			c.timers = append(c.timers[:i], c.timers[i+1:]...)
			return true
		}
	}
	return false
}

// Advance moves the clock and calls due functions in the order of their times.
func (c *Clock) Advance(d time.Duration) {
	end := c.Now().Add(d)
	for t := c.next(end); t != nil; t = c.next(end) {
		t.f()
	}
}

// next takes the first timer due by end and moves the time to it; without one, to end.
func (c *Clock) next(end time.Time) *timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *timer
	for _, t := range c.timers {
		if !t.at.After(end) && (first == nil || t.at.Before(first.at)) {
			first = t
		}
	}
	if first == nil {
		c.now = end
		return nil
	}
	if first.at.After(c.now) {
		c.now = first.at
	}
	c.drop(first)
	return first
}
