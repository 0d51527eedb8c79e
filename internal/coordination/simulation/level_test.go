package simulation

import (
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// newCommand returns a command that is new in the later of the two simulated versions.
func newCommand() map[string]uint32 { return map[string]uint32{"delete_requirement": 2} }

// former and later are the last two versions of a program. The former one cannot read the new command.
func former() machine.Features {
	return machine.Features{Levels: coord.Levels{Min: 1, Max: 1}, Since: newCommand()}
}

func later() machine.Features {
	return machine.Features{Levels: coord.Levels{Min: 1, Max: 2}, Since: newCommand()}
}

// announcement is the last word of a member's process on its levels, as in the handshakes of its streams.
type announcement struct {
	born   time.Duration // start of the process: a later one has the last word
	levels coord.Levels
	group  uint32
}

// announce returns the present announcement of a process.
func (n *node) announce(p *process) announcement {
	return announcement{p.born, n.features.Levels, p.replica.Status().Level}
}

// fits plays the handshake between two members: the feature level of the group, as either side knows it, must be
// supported by the other one.
func (n *node) fits(p *process, from uint64, a announcement) bool {
	if mine := p.replica.Status().Level; mine != 0 && !a.levels.Supports(mine) || a.group != 0 && !n.features.Levels.Supports(a.group) {
		n.figures.unfit++
		return false
	}
	if a.born >= p.announced[from].born {
		p.announced[from] = a
	}
	return true
}

// raise lets a leader raise the level of the group.
func (n *node) raise(p *process, s replica.Status) {
	var others []membership.Announced
	for _, m := range s.Members {
		if m.ID != p.replica.ID() {
			one := membership.Announced{Name: m.Peer}
			if m.Active {
				one.Levels = p.announced[m.ID].levels
			}
			others = append(others, one)
		}
	}
	level, _ := membership.Level(s.Level, n.features.Levels, others)
	if level == s.Level || p.raising {
		return
	}
	packed, err := p.config.Pack(coordtest.Command("", &coordv1.SetLevel{Level: level}))
	n.must(err)
	p.next++
	p.raising = true
	n.tell("%s raises the level to %d", n.name, level)
	p.waiting[p.next] = func(a replica.Answer) {
		if p.raising = false; a.Err == nil && a.Result.Err == nil {
			n.figures.raised++
		}
	}
	p.replica.Propose(p.next, packed)
}

// upgrade restarts a peer with the later program.
func upgrade(c *cluster) (string, func()) {
	n := c.any()
	if !c.mixed || n.features.Levels.Max == 2 {
		return "nobody is upgraded", nil
	}
	n.upgrade()
	return "upgrade " + n.name, nil
}

func (n *node) upgrade() {
	n.features, n.upgraded = later(), true
	n.figures.upgrades++
	n.crash()
}

// downgrade restarts a peer with the former program, which is promised to work until the level rises. It does not
// rise while a member was never upgraded.
func downgrade(c *cluster) (string, func()) {
	n := c.any()
	if !c.mixed || n.features.Levels.Max == 1 || c.oracle.machine.Level() > 1 {
		return "nobody is downgraded", nil
	}
	for _, m := range c.oracle.conf.members {
		if i := c.nodeOf(m.ID); i >= 0 && c.nodes[i] != n && !c.nodes[i].upgraded {
			n.features = former()
			n.figures.downgrades++
			n.crash()
			return "downgrade " + n.name, nil
		}
	}
	return "nobody is downgraded", nil
}

// tooOld handles a downgraded process that the level of the group has left behind: it stops with the reason, and
// its operator upgrades it.
func (n *node) tooOld(err error) bool {
	if fault.KindOf(err) != fault.Unsupported || !n.upgraded || n.features.Levels.Max > 1 {
		return false
	}
	n.tell("%s is too old: %v", n.name, err)
	n.figures.tooOld++
	n.upgrade()
	return true
}

// finishUpgrade upgrades the rest, in most mixed groups. The level of the group must follow.
func (c *cluster) finishUpgrade() {
	if !c.mixed || c.oracle.machine.Level() == 1 && c.chance(0.2) {
		return
	}
	for _, n := range c.nodes {
		if n.features.Levels.Max == 1 {
			n.upgrade()
		}
	}
}

// settleLevel requires that the level of a healed group follows its members, and not before (V2).
func (c *cluster) settleLevel() {
	want := uint32(2)
	for _, n := range c.nodes {
		if c.oracle.conf.has(n.member()) {
			want = min(want, n.features.Levels.Max)
		}
	}
	for end := c.now + 20*time.Second; c.now < end && c.fail == nil && c.oracle.machine.Level() != want; {
		c.run(c.now + 100*time.Millisecond)
	}
	if got := c.oracle.machine.Level(); c.fail == nil && got != want {
		c.breach("V2", "the group is at level %d, its members support %d: %s", got, want, c.standing())
	}
}

// member returns the member id of a peer; 0 while it is down.
func (n *node) member() uint64 {
	if n.process == nil {
		return 0
	}
	return n.process.replica.ID()
}
