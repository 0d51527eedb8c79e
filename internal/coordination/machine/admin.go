package machine

import (
	"math"

	"github.com/blackhole/blackhole/pkg/fault"
)

// leap is the revision step of a new incarnation: more than a group can write while a backup is
// useful (127 days at 10^5 writes a second).
const leap = 1 << 40

func (o *compactOp) run(m *Machine, _ *call) error {
	if o.Revision < 0 || o.Revision > m.revision {
		return fault.Invalidf("revision", o.Revision, "the present revision is %d", m.revision)
	}
	if o.Revision > m.compacted {
		m.compact(o.Revision)
	}
	return nil
}

func (o *bumpIncarnationOp) run(m *Machine, _ *call) error {
	if o.Incarnation != m.incarnation+1 {
		return fault.Refused(fault.Conflict, "incarnation", "the present one is %d", m.incarnation)
	}
	if m.revision > math.MaxInt64-2*leap {
		return fault.Refused(fault.LimitReached, "incarnation", "no revisions are left")
	}
	m.incarnation = o.Incarnation
	m.revision += leap
	m.compact(m.revision)
	return nil
}
