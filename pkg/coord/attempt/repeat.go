package attempt

import (
	"context"
	"time"
)

// Rules say how a call is repeated.
type Rules struct {
	First, Last time.Duration // pauses between two calls: each is twice the one before

	Patience time.Duration    // without progress; 0 means as long as Rest
	Now      func() time.Time // the clock of the patience

	Passing func(ctx context.Context, err error) bool           // whether a later call may succeed
	Rest    func(ctx context.Context, pause time.Duration) bool // false: no more calls
}

// Run is a call with its repetitions. It is for one goroutine.
type Run struct {
	rules Rules
	since time.Time     // of the last progress; zero without a patience
	pause time.Duration // the next one
}

// Progress begins the patience and the pauses anew: the call got something, and lasted.
func (r *Run) Progress() {
	r.pause = r.rules.First
	if r.rules.Patience > 0 {
		r.since = r.rules.Now()
	}
}

// Left returns the rest of the patience, if the rules have one.
func (r *Run) Left() time.Duration { return r.rules.Patience - r.rules.Now().Sub(r.since) }

// Repeat makes a call until it succeeds, fails for good, or the rules end it. It returns the call's last error.
func (r Rules) Repeat(ctx context.Context, call func(*Run) error) error {
	run := &Run{rules: r}
	for run.Progress(); ; run.pause = min(2*run.pause, r.Last) {
		err := call(run)
		if err == nil || !r.Passing(ctx, err) {
			return err
		}
		pause := run.pause
		if r.Patience > 0 {
			pause = min(pause, run.Left())
		}
		if pause <= 0 || !r.Rest(ctx, pause) {
			return err
		}
	}
}
