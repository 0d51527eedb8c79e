package index

import (
	"sync/atomic"
	"time"
)

// crowdedFor exceeds the time between two comparisons of a keeper: a record that still has no room is refused again
// within it.
const crowdedFor = 2 * time.Minute

// Pressure remembers when an index last refused or evicted a live record for want of memory.
type Pressure struct {
	at  atomic.Int64 // Unix nanoseconds; 0: never
	now bool         // since the last note
}

// Crowded reports whether the index recently refused or evicted a live record for want of memory. Then it may lack
// records that it should hold. It is safe for concurrent use.
func (p *Pressure) Crowded(now time.Time) bool {
	at := p.at.Load()
	return at != 0 && nanos(now)-at < int64(crowdedFor)
}

// short tells that a service in a state had no room.
func (p *Pressure) short(s state) { p.now = p.now || s == live }

// note stores the time of a change that had no room.
func (p *Pressure) note(now time.Time) {
	if p.now {
		p.now = false
		p.at.Store(nanos(now))
	}
}
