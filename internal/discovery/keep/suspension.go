package keep

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
)

const (
	pulseEvery   = 2 * time.Second
	suspendedFor = 5 * time.Second // without a pulse: the process did not run
)

// pulse notices that this process was suspended: a laptop slept, a virtual machine was paused. Its connections
// look alive when it continues, although it has missed changes. Times are those of the wall clock, since the
// monotonic clock stops while a machine sleeps. A clock that is set forward counts as a suspension, which costs
// one comparison.
type pulse struct{ last atomic.Int64 } // Unix nanoseconds

// beat records that the process runs, and reports whether it was suspended before. Exactly one caller is told.
func (p *pulse) beat(now time.Time) bool {
	at, last := now.UnixNano(), p.last.Load()
	if last <= at && at-last < int64(pulseEvery) { // the usual case of a query costs no write
		return false
	}
	return p.last.CompareAndSwap(last, at) && last != 0 && at-last > int64(suspendedFor)
}

// Run notices suspensions, changes that did not come, the end of an isolation, and a slow join, until ctx ends.
func (y *Authority) Run(ctx context.Context) {
	protocol.Every(ctx, pulseEvery, func() {
		y.Know.alive(y.Clock())
		y.Know.overdue(y.Clock())
		table := y.Table()
		y.Know.TellJoining(table.Serving || len(table.Peers) == 0, y.Clock())
		if r, ok := y.Router.(suspectReporter); ok {
			r.Suspect(y.Know.review(y.Clock())...)
		}
	})
}

// alive records that the process runs. After a suspension no comparison counts any more.
func (w *knowledge) alive(now time.Time) {
	if !w.pulse.beat(now) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		m.met, m.silent, m.since, m.due, m.tries = false, false, now, now, 0
	}
	w.regained = now
	w.epoch.Add(1)
	w.changed()
	w.wake()
}
