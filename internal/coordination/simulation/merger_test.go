package simulation

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
)

// merger is a process's part in merges. It survives no restart: only the state of the group does.
type merger struct {
	node     *node
	process  *process
	looked   time.Duration
	proposed bool // a command is under way
	known    map[machine.GroupID]formation.Group
}

func newMerger(n *node, p *process) merger {
	return merger{node: n, process: p, known: make(map[machine.GroupID]formation.Group)}
}

// look takes the next step towards one group.
func (m *merger) look() {
	n, p := m.node, m.process
	if n.world == nil || n.world.parted || n.local() < m.looked+300*time.Millisecond {
		return
	}
	m.looked = n.local()
	m.enquire()
	own := formation.Group{ID: machine.GroupID(n.group), UserData: true} // without a state
	if p.store.HasSnapshot() {
		own = m.describe()
	}
	mayPropose := p.replica.Status().Promoted && !m.proposed
	step := formation.Next(own, slices.Collect(maps.Values(m.known)), m.leaderless())
	switch step.Action {
	case formation.Contest:
		n.world.figures.contested++
	case formation.Dissolve:
		if mayPropose {
			m.propose(own.End(m.known[step.Group]), func() {
				n.world.figures.dissolved++
				n.tell("%s ends its group", n.name)
			})
		}
	case formation.Leave:
		m.leave(n.world.clusterOf(step.Group), own.Over.Over())
	}
}

// leaderless reports whether no leader answers. A learner alone never notices: Raft makes it no candidate.
func (m *merger) leaderless() bool {
	at := m.node.cluster.nodeOf(m.process.replica.Status().Leader.ID)
	return at < 0 || m.node.cluster.nodes[at].process == nil
}

// describe returns the group as this member knows it.
func (m *merger) describe() formation.Group {
	g, _ := formation.GroupOf(machine.GroupID(m.node.group), m.process.replica.Machine())
	for _, c := range m.node.world.merged[m.node.cluster] {
		g.Former = append(g.Former, machine.GroupID(c.group))
	}
	return g
}

// back runs on the process, if it still runs.
func (m *merger) back(do func()) {
	if m.node.process == m.process {
		m.node.in(do)
	}
}

// enquire asks some peer of another cluster for its group.
func (m *merger) enquire() {
	n := m.node
	c := n.world.clusters[n.rng.IntN(len(n.world.clusters))]
	if c == n.cluster {
		return
	}
	to := c.any()
	n.net.send(n.name, to.name, func() {
		to.in(func() {
			if to.process.store.HasSnapshot() {
				said := to.process.merger.describe()
				n.net.send(to.name, n.name, func() {
					m.back(func() { m.known[said.ID] = said })
				})
			}
		})
	})
}

// propose proposes a command of a leader, one at a time. Without an error it calls done.
func (m *merger) propose(op proto.Message, done func()) {
	p := m.process
	packed, err := p.config.Pack(coordtest.Command("", op))
	m.node.must(err)
	p.next++
	m.proposed = true
	p.waiting[p.next] = func(a replica.Answer) {
		if m.proposed = false; a.Err == nil && a.Result.Err == nil {
			done()
		}
	}
	p.replica.Propose(p.next, packed)
}

// leave drops the state and goes over to another group, as a peer with an empty disk. Before, the process may die.
func (m *merger) leave(to *cluster, knows bool) {
	n := m.node
	if n.chance(0.2) {
		n.crash()
		return
	}
	n.world.joins(n.cluster, to)
	n.world.figures.left++
	if !knows {
		n.world.figures.followed++
	}
	n.gone = true
	n.stop()
	n.silent = false
	n.tell("%s goes over to %s", n.name, to.place)
	fresh := to.newNode("from-" + n.name)
	fresh.upgraded = true
	fresh.after(n.between(0, time.Second), fresh.start)
}

// follow moves a client whose group was dissolved to one that lives.
func (c *client) follow() {
	if c.world == nil || !c.over() {
		return
	}
	living := c.world.living()
	if len(living) == 0 {
		return
	}
	c.cluster = living[c.rng.IntN(len(living))]
	c.id, c.sequence, c.sessions, c.target = 0, 0, make(map[coord.LeaseID]*session), 0
	c.tell("%s goes on at %s", c.name, c.place)
}

// dissolved reports whether a command was refused because its group has ended.
func dissolved(err error) bool {
	return fault.KindOf(err) == fault.Unavailable && fault.FieldOf(err) == "group"
}
