package coordination

import (
	"time"

	"github.com/blackhole/blackhole/internal/platform/condition"
)

// leaderlessGrace is the time without a leader until the condition no_quorum: an election is shorter.
const leaderlessGrace = 5 * time.Second

// tell logs each new leader, and keeps the condition no_quorum while none is known. missing says what a
// leader needs.
func (f *leaderFinder) tell(p *Plane) {
	log, conditions := p.config.Logger, p.config.Conditions
	var last string
	for {
		term, name, changed := f.leading()
		if name != "" && name != last {
			log.Info("the group has a leader", "leader", p.inquiry.calls(name), "term", term, "before", p.inquiry.calls(last))
			last = name
		}
		var late <-chan time.Time
		if name == "" {
			late = time.After(leaderlessGrace)
		} else {
			conditions.Clear(condition.NoQuorum)
		}
		select {
		case <-changed:
		case <-late:
			conditions.Raise(condition.NoQuorum, "locks, leases, keys and changes of the directory fail, and reads may be stale: %s", p.missing())
		case <-f.life.Done():
			return
		}
	}
}
