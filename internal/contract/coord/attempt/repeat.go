package attempt

import (
	"context"
	"time"
)

// Rules say how calls are repeated.
type Rules struct {
	First, Last time.Duration // pauses between two calls: each is twice the one before

	Patience time.Duration    // without progress; 0 means as long as Rest
	Now      func() time.Time // the clock of the patience

	Passing func(ctx context.Context, err error) bool // whether a later call may succeed; nil: after every error
	// Rest pauses, and may end the pause when news is closed. False: no more calls.
	Rest func(ctx context.Context, pause time.Duration, news <-chan struct{}) bool
}

// Run is a call with its repetitions. It is for one goroutine.
//
//	for run := rules.Begin(); ; {
//		if err := call(); err == nil || !run.Again(ctx, err, nil) {
//			return err
//		}
//	}
type Run struct {
	rules *Rules
	since time.Time     // of the last progress; zero without a patience
	pause time.Duration // the next one
}

// Begin begins a call.
func (r *Rules) Begin() Run {
	run := Run{rules: r}
	run.Progress()
	return run
}

// Progress begins the patience and the pauses anew: the call got something, or lasted.
func (r *Run) Progress() {
	r.pause = r.rules.First
	if r.rules.Patience > 0 {
		r.since = r.rules.Now()
	}
}

// Left returns the rest of the patience. The rules must have one.
func (r *Run) Left() time.Duration { return r.rules.Patience - r.rules.Now().Sub(r.since) }

// Again pauses after a failed call, at most until news, and reports whether to call again.
func (r *Run) Again(ctx context.Context, err error, news <-chan struct{}) bool {
	if r.rules.Passing != nil && !r.rules.Passing(ctx, err) {
		return false
	}
	pause := r.pause
	r.pause = min(2*r.pause, r.rules.Last)
	if r.rules.Patience > 0 {
		pause = min(pause, r.Left())
	}
	return pause > 0 && r.rules.Rest(ctx, pause, news)
}
