// Package clock estimates the offset of this peer's clock from the clocks of other peers. It is pure: samples
// and times are arguments, estimates are results.
//
// A sample is the time in the answer of another peer. Of each peer the last sample counts. Peers of one public
// network prefix share one vote, because one owner usually controls a prefix; behind private addresses each peer
// has its own vote.
//
// With MinVotes votes or more, the offset is the distance to their median. A minority of liars cannot move a
// median out of the range of the honest votes. With fewer votes a single liar could be the median. There this
// peer's own clock counts as one more, and the estimate needs a strict majority of clocks that agree within
// Agreement. Without a majority the clocks are Disputed: one of them is wrong, and nobody can tell which.
//
// The estimate never corrects a time. It says how far this peer's clock can be trusted.
package clock

import (
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	// MinVotes is the number of votes whose median counts without this peer's own clock.
	MinVotes = 5
	// Agreement is the largest difference between clocks that agree: many round trips, and the error of a machine
	// without NTP for some days.
	Agreement = 5 * time.Second
	// Warn is the offset above which a clock counts as wrong.
	Warn = 30 * time.Second

	maxTrip    = 10 * time.Second // round trip of a useful sample: its error is at most half of it
	maxAge     = 5 * time.Minute  // of a sample
	maxSamples = 64               // the oldest sample makes room
	maxOffset  = 1e6 * time.Hour  // larger offsets count as this one, so that no difference overflows
	maxStep    = 2 * time.Second  // change of this peer's wall clock against its steady clock between two calls
)

// Moment is one moment on the two clocks of this peer. Wall dates records and may jump. Steady only measures
// elapsed time.
type Moment struct{ Wall, Steady time.Time }

// Sample is one answer of another peer.
type Sample struct {
	Peer   peer.ID
	Prefix netip.Prefix  // public network of the peer; zero gives the peer its own vote
	Time   time.Time     // of the peer's clock, when it answered
	Trip   time.Duration // from the request to the answer
}

// State is the certainty of an estimate.
type State int

// The states of an estimate.
const (
	Unknown  State = iota // no recent sample
	Known                 // Offset is this clock minus the clocks of the others
	Disputed              // no majority of the few clocks agrees; Offset is the largest difference
)

// Estimate is the offset of this peer's clock.
type Estimate struct {
	State  State
	Offset time.Duration // this clock minus the others': positive if this clock is fast
	Votes  int
}

// Wrong reports whether this peer's clock, or an unknown one of the few that it was compared with, is off by more
// than Warn.
func (e Estimate) Wrong() bool { return e.State != Unknown && e.Offset.Abs() > Warn }

// Comparison keeps the samples. It is not safe for concurrent use. The zero value is empty.
type Comparison struct {
	samples []sample // oldest first, one for each peer
	last    Moment   // of the last call
}

type sample struct {
	peer   peer.ID
	prefix netip.Prefix
	offset time.Duration // this clock minus the peer's
	at     time.Time     // steady
}

// Add adds an answer that arrived now and reports whether it was usable. It returns this clock minus the peer's.
func (c *Comparison) Add(s Sample, now Moment) (offset time.Duration, ok bool) {
	c.observe(now)
	if s.Trip < 0 || s.Trip > maxTrip {
		return 0, false
	}
	offset = now.Wall.Round(0).Add(-s.Trip / 2).Sub(s.Time)
	offset = max(-maxOffset, min(offset, maxOffset))
	c.samples = slices.DeleteFunc(c.samples, func(x sample) bool { return x.peer == s.Peer })
	if len(c.samples) >= maxSamples {
		c.samples = slices.Delete(c.samples, 0, 1)
	}
	c.samples = append(c.samples, sample{peer: s.Peer, prefix: s.Prefix, offset: offset, at: now.Steady})
	return offset, true
}

// Estimate returns the offset of this peer's clock now.
func (c *Comparison) Estimate(now Moment) Estimate {
	c.observe(now)
	votes := c.votes()
	n := len(votes)
	if n == 0 {
		return Estimate{}
	}
	if n >= MinVotes {
		return Estimate{State: Known, Offset: median(votes), Votes: n}
	}
	clocks := append(votes, 0) // this peer's own
	slices.Sort(clocks)
	for i := range clocks {
		majority := len(clocks)/2 + 1
		if end := i + majority - 1; end < len(clocks) && clocks[end]-clocks[i] <= Agreement {
			agreed := slices.DeleteFunc(slices.Clone(clocks), func(v time.Duration) bool {
				return v < clocks[i] || v-clocks[i] > Agreement
			})
			return Estimate{State: Known, Offset: median(agreed), Votes: n}
		}
	}
	return Estimate{State: Disputed, Offset: clocks[n] - clocks[0], Votes: n}
}

// observe forgets old samples, and all after a step of this peer's clock: they compare with a clock that it no
// longer has.
func (c *Comparison) observe(now Moment) {
	wall := now.Wall.Round(0).Sub(c.last.Wall.Round(0))
	if !c.last.Wall.IsZero() && (wall-now.Steady.Sub(c.last.Steady)).Abs() > maxStep {
		c.samples = nil
	}
	c.last = now
	c.samples = slices.DeleteFunc(c.samples, func(s sample) bool { return now.Steady.Sub(s.at) > maxAge })
}

// votes returns the sorted offsets: one for each prefix, the median of its peers.
func (c *Comparison) votes() []time.Duration {
	var votes []time.Duration
	shared := make(map[netip.Prefix][]time.Duration)
	for _, s := range c.samples {
		if s.prefix.IsValid() {
			shared[s.prefix] = append(shared[s.prefix], s.offset)
		} else {
			votes = append(votes, s.offset)
		}
	}
	for _, offsets := range shared {
		slices.Sort(offsets)
		votes = append(votes, median(offsets))
	}
	slices.Sort(votes)
	return votes
}

// median returns the median of sorted values, at least one. Of an even number it is the middle of the two in the
// middle.
func median(sorted []time.Duration) time.Duration {
	n := len(sorted)
	low, high := sorted[(n-1)/2], sorted[n/2]
	return low + (high-low)/2
}
