package protocol

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/clock"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// estimateEvery bounds the age of an estimate. A sample that contradicts the estimate renews it at once.
const estimateEvery = time.Second

// latestTime bounds the times of other peers, in milliseconds: far above any real time, and safe
// from overflow.
const latestTime = 1 << 53

// clockCheck compares this peer's clock with the clocks of the keepers that answer it, and raises
// the condition for a wrong one. It is safe for concurrent use.
type clockCheck struct {
	now        func() time.Time // of the wall clock
	steady     func() time.Time // of the runtime
	prefixOf   func(peer.ID) (netip.Prefix, bool)
	conditions *condition.Set
	fault      atomic.Pointer[string] // describes a wrong clock; nil for a right or unknown one

	mu       sync.Mutex // guards the fields below
	samples  clock.Comparison
	estimate clock.Estimate
	made     time.Time // steady time of the estimate
}

// sample adds the time of an answer. It returns this peer's clock minus the keeper's, and false for
// an answer without a usable time.
func (c *clockCheck) sample(id peer.ID, ms uint64, trip time.Duration) (apart time.Duration, ok bool) {
	if ms == 0 || ms > latestTime {
		return 0, false
	}
	prefix, known := c.prefixOf(id)
	if known && prefix.Addr().IsPrivate() { // a private network has many owners
		prefix = netip.Prefix{}
	}
	now := clock.Moment{Wall: c.now(), Steady: c.steady()}
	c.mu.Lock()
	defer c.mu.Unlock()
	apart, ok = c.samples.Add(clock.Sample{Peer: id, Prefix: prefix, Time: time.UnixMilli(int64(ms)), Trip: trip}, now)
	contradicts := (apart - c.estimate.Offset).Abs() > clock.Agreement
	if ok && (contradicts || now.Steady.Sub(c.made) >= estimateEvery) {
		c.renew(now)
	}
	return apart, ok
}

// current returns the estimate now.
func (c *clockCheck) current() clock.Estimate {
	now := clock.Moment{Wall: c.now(), Steady: c.steady()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Steady.Sub(c.made) >= estimateEvery {
		c.renew(now)
	}
	return c.estimate
}

// renew makes a new estimate, and raises or clears the condition and the fault. Without a sample
// both stay: only other clocks can refute them. The caller holds mu.
func (c *clockCheck) renew(now clock.Moment) {
	c.estimate, c.made = c.samples.Estimate(now), now.Steady
	const fine = clock.Warn * 4 / 5 // below Warn, so that a clock at the limit does not flap
	switch e := c.estimate; {
	case e.Wrong():
		text := clockFault(e)
		c.fault.Store(&text)
		c.conditions.Raise(condition.ClockOffset, fault.Problem{
			What: text, Effect: "its answers are incomplete", Remedy: "Set the clock by NTP: `timedatectl set-ntp true`",
		})
	case e.State != clock.Unknown && e.Offset.Abs() < fine:
		c.fault.Store(nil)
		c.conditions.Clear(condition.ClockOffset)
	}
}

// clockFault describes a wrong estimate.
func clockFault(e clock.Estimate) string {
	by := e.Offset.Abs().Round(time.Second)
	switch {
	case e.State == clock.Disputed:
		return fmt.Sprintf("the clocks of this peer and %d keepers differ by up to %s, and no majority agrees", e.Votes, by)
	case e.Offset > 0:
		return fmt.Sprintf("this peer's clock is %s ahead of its keepers' clocks", by)
	default:
		return fmt.Sprintf("this peer's clock is %s behind its keepers' clocks", by)
	}
}

// wrong describes the fault of this peer's clock; "" for a right or unknown clock.
func (c *clockCheck) wrong() string {
	if text := c.fault.Load(); text != nil {
		return *text
	}
	return ""
}
