package simulation

import (
	"fmt"
	"slices"
	"time"
)

// nemesis injects one fault after the other, and heals all of them in the end.
func (c *cluster) nemesis(p *proc, until time.Duration) {
	p.sleep(c.between(time.Second, 3*time.Second)) // leaves time for an election
	var heal []func()
	for c.now < until {
		faults := []struct {
			weight int
			strike func(*cluster) (string, func())
		}{
			{4, cutLink}, {4, isolate}, {3, halve}, {5, kill}, {3, killInSync}, {5, pause},
			{3, stall}, {3, disturb}, {2, loseDisk}, {3, loseWrites}, {1, killAll}, {2, handOver}, {2, outcasts}, {3, upgrade}, {3, downgrade},
		}
		total := 0
		for _, f := range faults {
			total += f.weight
		}
		draw := c.rng.IntN(total)
		for _, f := range faults {
			if draw -= f.weight; draw < 0 {
				name, undo := f.strike(c)
				c.tell("fault: %s", name)
				heal = append(heal, once(undo))
				if undo != nil {
					c.after(c.between(100*time.Millisecond, 6*time.Second), heal[len(heal)-1])
				}
				break
			}
		}
		p.sleep(c.between(50*time.Millisecond, 5*time.Second))
	}
	for _, undo := range heal {
		undo()
	}
	c.finishUpgrade()
	c.healed = true
	c.tell("all faults are healed")
	for !c.strong() {
		p.sleep(time.Second)
		outcasts(c)
	}
}

func once(f func()) func() {
	return func() {
		if f != nil {
			f()
		}
		f = nil
	}
}

func (c *cluster) any() *node { return c.nodes[c.rng.IntN(len(c.nodes))] }

// split returns the names of all peers in two groups.
func (c *cluster) split(with func(i int) bool) (some, others []string) {
	for i, n := range c.nodes {
		if with(i) {
			some = append(some, n.name)
		} else {
			others = append(others, n.name)
		}
	}
	return some, others
}

func cutLink(c *cluster) (string, func()) {
	a, b := c.any().name, c.any().name
	return "cut " + a + " to " + b, c.net.sever([]string{a}, []string{b})
}

// isolate cuts a member off, the leader if possible, in both directions or one.
func isolate(c *cluster) (string, func()) {
	victim := c.any().name
	if l := c.leader(); l != nil && c.chance(0.6) {
		victim = l.name
	}
	one, rest := c.split(func(i int) bool { return c.nodes[i].name == victim })
	in, out := func() {}, func() {}
	way := c.rng.IntN(3)
	if way != 0 {
		in = c.net.sever(rest, one)
	}
	if way != 1 {
		out = c.net.sever(one, rest)
	}
	return "isolate " + victim, func() { in(); out() }
}

func halve(c *cluster) (string, func()) {
	cut := make([]bool, len(c.nodes))
	for i := range cut {
		cut[i] = c.chance(0.5)
	}
	a, b := c.split(func(i int) bool { return cut[i] })
	there, back := c.net.sever(a, b), c.net.sever(b, a)
	return "halve", func() { there(); back() }
}

func kill(c *cluster) (string, func()) {
	n := c.any()
	if l := c.leader(); l != nil && c.chance(0.4) {
		n = l
	}
	n.crash()
	return "kill " + n.name, nil
}

func killInSync(c *cluster) (string, func()) {
	n := c.any()
	fails := c.chance(0.3)
	n.disk.dieInSync(fails)
	return fmt.Sprintf("kill in sync %s, error %v", n.name, fails), nil
}

func killAll(c *cluster) (string, func()) {
	for _, n := range c.nodes {
		n.crash()
	}
	return "kill all", nil
}

func pause(c *cluster) (string, func()) {
	n := c.any()
	if l := c.leader(); l != nil && c.chance(0.5) {
		n = l
	}
	n.paused++
	return "pause " + n.name, func() { n.paused--; n.after(0, n.turn) }
}

// stall makes a disk slow, or very slow.
func stall(c *cluster) (string, func()) {
	n := c.any()
	usual := n.latency
	n.latency = c.between(50*time.Millisecond, 4*time.Second)
	return "stall " + n.name, func() { n.latency = min(usual, 4*time.Millisecond) }
}

func disturb(c *cluster) (string, func()) {
	c.net.loss, c.net.repeat, c.net.slow = c.rng.Float64()*0.3, c.rng.Float64()*0.3, c.between(time.Millisecond, 300*time.Millisecond)
	return "disturb", func() { c.net.loss, c.net.repeat, c.net.slow = 0, 0, 3*time.Millisecond }
}

// loseDisk wipes a peer, if the group can spare its data.
func loseDisk(c *cluster) (string, func()) {
	victim := c.any()
	if !c.spares(victim) {
		return "no disk is lost", nil
	}
	victim.wipe()
	return "wipe " + victim.name, nil
}

// loseWrites makes a disk lose what it synced during some seconds, if the group can spare its data by then. The member
// must notice it.
func loseWrites(c *cluster) (string, func()) {
	victim := c.any()
	if victim.process == nil || victim.disk.died() {
		return "no disk loses writes", nil
	}
	victim.disk.remember(victim.promised())
	return "lose the writes of " + victim.name, func() {
		if victim.process == nil || victim.disk.died() || !c.spares(victim) {
			return
		}
		if victim.disk.forget(victim.promised()) {
			victim.wiped = c.now
			c.tell("%s loses writes", victim.name)
		}
		victim.crash()
	}
}

// promise is what a member's acknowledgements rest on.
type promise struct{ last, term, vote uint64 }

func (n *node) promised() (w promise) {
	w.last, _ = n.process.store.LastIndex()
	hard, _, _ := n.process.store.InitialState()
	w.term, w.vote = hard.GetTerm(), hard.GetVote()
	return w
}

// spares reports whether the group has a leader and a majority without the data of a peer.
func (c *cluster) spares(victim *node) bool {
	l := c.leader()
	if l == nil {
		return false
	}
	have, voters := 0, 0
	for _, m := range c.oracle.conf.members {
		if m.Voter {
			voters++
			if i := c.nodeOf(m.ID); i >= 0 && c.nodes[i] != victim {
				have++
			}
		}
	}
	lately := slices.ContainsFunc(c.nodes, func(n *node) bool { return n.wiped > 0 && c.now-n.wiped < 20*time.Second })
	return victim != l && !lately && !c.oracle.conf.joint && have > voters/2 && have >= voters-1
}

// handOver asks the leader for a transfer.
func handOver(c *cluster) (string, func()) {
	l := c.leader()
	if l == nil {
		return "no leader to hand over", nil
	}
	to := c.any()
	if to.process != nil && to != l {
		_ = l.process.replica.Transfer(to.process.replica.ID())
		l.after(0, l.turn)
	}
	return "hand over from " + l.name + " to " + to.name, nil
}

// outcasts makes some members outside of the latest configuration begin anew, as their discovery would. Others
// offer themselves again under their old id.
func outcasts(c *cluster) (string, func()) {
	for _, n := range c.nodes {
		if p := n.process; p != nil && p.store.HasSnapshot() && !c.oracle.conf.has(p.replica.ID()) && c.chance(0.3) {
			n.wipe()
			n.wiped = 0
		}
	}
	return "outcasts begin anew", nil
}

// leader returns the serving leader of the latest term; nil without one.
func (c *cluster) leader() (best *node) {
	for _, n := range c.nodes {
		if p := n.process; p != nil {
			if s := p.replica.Status(); s.Promoted && (best == nil || s.Header.Term > best.process.replica.Status().Header.Term) {
				best = n
			}
		}
	}
	return best
}

// strong reports whether the group has all its voters running.
func (c *cluster) strong() bool {
	l := c.leader()
	if l == nil {
		return false
	}
	voters := 0
	for _, m := range l.process.replica.Status().Members {
		if m.Voter && m.Active {
			voters++
		}
	}
	return voters >= c.voters
}
