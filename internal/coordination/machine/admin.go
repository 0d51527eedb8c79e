package machine

import (
	"math"
	"slices"

	"github.com/blackhole/blackhole/pkg/coord"
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
	leapTo(m, m.revision+leap)
	return nil
}

// leapTo raises the revision above what other logs may have given out. The history before is compacted. A claim that waits has a
// token of before the leap, so it leaves its queue: it must not hold after a later token that this log does not know.
func leapTo(m *Machine, to coord.Revision) {
	m.revision = to
	m.compact(to)
	for _, name := range m.LockNames("") {
		q := m.locks[name]
		for _, kv := range slices.Clone(q.claims[q.held:]) {
			q.remove(kv.Token())
			m.remove(kv.Key)
		}
	}
}
