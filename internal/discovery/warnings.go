package discovery

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/platform/clock"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// clockWarning says which peers will not see a record of this peer, or not for its whole life, because of this
// peer's clock; "" for an offset within the tolerance of the protocol. now is the time of this peer's clock.
func clockWarning(e clock.Estimate, r *records.Record, now time.Time) string {
	if e.State == clock.Unknown || e.Offset.Abs() <= records.ClockSkew {
		return ""
	}
	by, right := e.Offset.Abs().Round(time.Second), now.Add(-e.Offset)
	switch {
	case e.State == clock.Disputed:
		return fmt.Sprintf("the clocks of this peer and of its keepers differ by up to %s and no majority agrees: some peers will not see this record; set the clocks, for example by NTP", by)
	case r.Issued().After(right.Add(records.ClockSkew)):
		return fmt.Sprintf("this peer's clock is %s ahead of its keepers' clocks: other peers refuse this record as issued in the future and will not see it; set the clock, for example by NTP", by)
	case !r.Expires().After(right):
		return fmt.Sprintf("this peer's clock is %s behind its keepers' clocks: for other peers this record has expired, and they will not see it; set the clock, for example by NTP", by)
	case e.Offset < 0:
		return fmt.Sprintf("this peer's clock is %s behind its keepers' clocks: for other peers this record expires that much earlier; set the clock, for example by NTP", by)
	default:
		return fmt.Sprintf("this peer's clock is %s ahead of its keepers' clocks: other peers may refuse this record; set the clock, for example by NTP", by)
	}
}

// ClockOffset returns this peer's clock minus the clocks of its keepers, in seconds; nil: unknown. Call it after
// Start.
func (p *Plane) ClockOffset() *float64 {
	e := p.keepers.Clock()
	if e.State != clock.Known {
		return nil
	}
	s := e.Offset.Seconds()
	return &s
}

// reportOutdated counts an answer that leaves out records of later versions, if it does. It warns once an hour: any stranger can
// publish such records, so they are no condition of this peer.
func (s *Service) reportOutdated(b *query.LeftOut) {
	if b == nil {
		return
	}
	s.Metrics.Outdated()
	if s.outdated.again(s.Now(), time.Hour) {
		s.Logger.Warn("answers of this peer leave out offers of a newer version: upgrade blackholed", "records", b.Records, "features", b.Features)
	}
}

// seldom is the time of the last warning about something.
type seldom struct{ last atomic.Pointer[time.Time] }

// again reports whether the last warning is so long ago, and notes a new one.
func (s *seldom) again(now time.Time, every time.Duration) bool {
	last := s.last.Load()
	return (last == nil || now.Sub(*last) >= every) && s.last.CompareAndSwap(last, &now)
}

// warnings returns the warnings for a new version of an own record. live is the error of its live update, or nil.
func (p *Parts) warnings(r *records.Record, stored records.Stored, live error) []string {
	var all []string
	if w := clockWarning(p.Keepers.Clock(), r, p.Now()); w != "" {
		all = append(all, w)
	}
	if _, suspended := p.Registry.Suspended(); suspended {
		all = append(all, "this peer does not renew its offers: another machine uses its identity, or its data directory is an older copy; see the condition identity_in_use in status")
	}
	switch {
	case !stored.ThisPeerOnly || len(all) > 0: // else the causes are said
	case !r.Withdrawn() && r.Paused() == nil:
		all = append(all, "nobody else finds this offer: no other peer of the network holds it; see blackholed doctor")
	case stored.Of > 1:
		all = append(all, "no other peer has heard of this change: those that hold the offer show it as before, until this peer reaches them")
	}
	if !r.Withdrawn() && r.Paused() == nil {
		if w := p.truth.Partial(r); w != "" {
			all = append(all, w)
		}
	}
	if fault.KindOf(live) == fault.LimitReached {
		all = append(all, fault.Message(live))
	}
	return all
}

// reportFull keeps the condition of a full index. The condition is up to a minute late; the answers are not.
func reportFull(x *index.Index, conditions *condition.Set, now time.Time) {
	if x.Crowded(now) {
		_, limit := x.Memory()
		conditions.Raise(condition.IndexFull, fault.Problem{
			What:   fmt.Sprintf("the index of this peer is full at %d MiB", limit>>20),
			Effect: "it refuses or evicts records, and other keepers must answer for it", Remedy: "Raise discovery.limits.index_bytes",
		})
	} else {
		conditions.Clear(condition.IndexFull)
	}
}
