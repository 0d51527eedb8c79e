package coordination

import (
	"time"

	"github.com/blackhole/blackhole/internal/platform/condition"
)

// leaderlessGrace is the time without a leader until the condition no_quorum: an election is shorter.
const leaderlessGrace = 5 * time.Second

// tell logs each new leader, and keeps a condition while none is known: no_group without a group, otherwise no_quorum.
func (p *Plane) tell() {
	log, conditions := p.config.Logger, p.config.Conditions
	var last string
	for {
		term, name, changed := p.routing.Leading()
		if name != "" && name != last {
			log.Info("the group has a leader", "leader", p.inquiry.calls(name), "term", term, "before", p.inquiry.calls(last))
			last = name
			p.config.led()
		}
		var late <-chan time.Time
		if name == "" {
			late = time.After(leaderlessGrace)
		} else {
			conditions.Clear(condition.NoQuorum)
			conditions.Clear(condition.NoGroup)
		}
		select {
		case <-changed:
		case <-late:
			why := p.roster.lacks()
			if why == condition.NoQuorum {
				conditions.Clear(condition.NoGroup)
			}
			conditions.Raise(why, "locks, leases, keys and changes of the directory fail, and reads may be stale: %s", p.missing())
		case <-p.life.Done():
			return
		}
	}
}
