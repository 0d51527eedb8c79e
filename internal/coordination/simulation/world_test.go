package simulation

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// world is a network in which groups began apart, meet, and must become one.
type world struct {
	*scheduler
	net      *network
	clusters []*cluster
	parted   bool // the groups have not met
	merged   map[*cluster][]*cluster
	last     map[*cluster]coord.Token // greatest token given
	figures  merges
}

// merges counts events of a world.
type merges struct {
	groups, dissolved, released, forced, raised, left, followed, resumed, contested, tokens int
}

func (m *merges) add(n merges) {
	m.groups, m.dissolved, m.forced, m.raised = m.groups+n.groups, m.dissolved+n.dissolved, m.forced+n.forced, m.raised+n.raised
	m.released += n.released
	m.left, m.followed, m.resumed = m.left+n.left, m.followed+n.followed, m.resumed+n.resumed
	m.contested, m.tokens = m.contested+n.contested, m.tokens+n.tokens
}

func newWorld(seed uint64) *world {
	s := newScheduler(seed)
	w := &world{scheduler: s, net: newNetwork(s), parted: true, merged: make(map[*cluster][]*cluster), last: make(map[*cluster]coord.Token)}
	groups := 2
	if w.chance(0.25) {
		groups = 3
	}
	for i := range groups {
		c := &cluster{scheduler: s, net: w.net, resources: make(map[string]*resource), world: w}
		c.group, c.place = string(bytes.Repeat([]byte{byte(i + 1)}, machine.GroupIDBytes)), fmt.Sprintf("g%d-", i+1)
		c.draw()
		c.mixed, c.quiet = false, c.chance(0.4)
		c.crowded = !c.quiet && c.chance(0.4)
		c.peers, c.voters = 1+c.rng.IntN(4), 1
		if c.peers >= 3 {
			c.voters = 3
		}
		if c.clients = 1 + c.rng.IntN(2); c.crowded {
			c.clients = 5
		}
		c.repair.Voters = c.voters
		c.begin()
		c.oracle.granted = func(g machine.Grant) { w.granted(c, g) }
		w.clusters = append(w.clusters, c)
	}
	w.figures.groups = groups
	return w
}

// granted checks a token: it is above all tokens of groups whose members came here (M1), and a group whose members
// went away gives none (M2).
func (w *world) granted(c *cluster, g machine.Grant) {
	w.figures.tokens++
	for _, x := range w.merged[c] {
		if g.Token <= w.last[x] {
			w.breach("M1", "%s gives token %d; %s, which came to it, gave %d", c.place, g.Token, x.place, w.last[x])
		}
	}
	for _, y := range w.clusters {
		if slices.Contains(w.merged[y], c) {
			w.breach("M2", "%s gives token %d after members went to %s", c.place, g.Token, y.place)
		}
	}
	w.last[c] = max(w.last[c], g.Token)
}

// joins checks the move of a member from one group to another: the group that it leaves has ended, with all its locks (M2,
// M3), and the other one is above it already (M1).
func (w *world) joins(from, to *cluster) {
	m := from.oracle.machine
	switch {
	case !from.over():
		w.breach("M2", "a member leaves %s, which lives", from.place)
	case m.LockCount() > 0 || m.LeaseCount() > 0:
		w.breach("M3", "%s ended with %d locks and %d leases", from.place, m.LockCount(), m.LeaseCount())
	case to.oracle.machine.Revision()+1 < m.Revision(): // the end of a group is one revision more, without a token
		w.breach("M1", "a member goes from %s, at %d, to %s, at %d", from.place, m.Revision(), to.place, to.oracle.machine.Revision())
	}
	for _, x := range append([]*cluster{from}, w.merged[from]...) {
		if !slices.Contains(w.merged[to], x) && x != to {
			w.merged[to] = append(w.merged[to], x)
		}
	}
}

// inhabited returns the clusters with peers.
func (w *world) inhabited() []*cluster {
	return slices.DeleteFunc(slices.Clone(w.clusters), func(c *cluster) bool {
		return !slices.ContainsFunc(c.nodes, func(n *node) bool { return !n.gone })
	})
}

// over reports whether the group is dissolved.
func (c *cluster) over() bool { return machine.StandingOf(c.oracle.machine).Over.Over() }

// living returns the clusters whose group is not dissolved.
func (w *world) living() []*cluster {
	return slices.DeleteFunc(slices.Clone(w.clusters), func(c *cluster) bool { return c.over() })
}

func (w *world) clusterOf(id machine.GroupID) *cluster {
	return w.clusters[slices.IndexFunc(w.clusters, func(c *cluster) bool { return c.group == string(id) })]
}

// play runs the groups under faults, heals everything, and requires one group (M4).
func (w *world) play(d time.Duration) error {
	defer w.end()
	meet := w.between(0, d/2)
	w.after(meet, func() {
		w.parted = false
		w.tell("the groups meet")
	})
	for _, c := range w.clusters {
		w.spawn(func(p *proc) { c.nemesis(p, d) })
	}
	w.spawn(func(p *proc) { w.part(p, d) })
	w.spawn(func(p *proc) { w.operate(p, d) })
	w.run(d)
	for _, c := range w.clusters {
		c.calm = true
	}
	for end := d + 2*recovery; w.now < end && w.fail == nil && !w.one(); {
		w.run(w.now + time.Second)
	}
	if w.fail == nil && !w.one() {
		w.breach("M4", "the groups did not become one: %s", w.standing())
	}
	w.run(w.now + patience)
	if w.fail == nil {
		w.inhabited()[0].settle()
	}
	for _, c := range w.clusters {
		c.history.check(w.scheduler)
		for _, n := range c.nodes {
			n.shut()
		}
	}
	return w.fail
}

// one reports whether all peers are in one group, which is whole.
func (w *world) one() bool {
	left := w.inhabited()
	return len(left) == 1 && !left[0].over() && left[0].healed && left[0].strong()
}

func (w *world) standing() (all string) {
	for _, c := range w.clusters {
		m, said := c.oracle.machine, machine.StandingOf(c.oracle.machine)
		all += fmt.Sprintf("\n%s revision %d, %+v, reached %d, %+v:%s", c.place, m.Revision(), said.UserData, said.Reached, said.Over, c.standing())
	}
	return all
}

// part cuts groups off from each other, both ways or one.
func (w *world) part(p *proc, until time.Duration) {
	names := func(c *cluster) (all []string) {
		for _, n := range c.nodes {
			all = append(all, n.name)
		}
		return all
	}
	for w.now < until {
		a, b := w.clusters[w.rng.IntN(len(w.clusters))], w.clusters[w.rng.IntN(len(w.clusters))]
		heal := w.net.sever(names(a), names(b))
		if a == b || w.chance(0.3) {
			heal()
			heal = func() {}
		}
		p.sleep(w.between(100*time.Millisecond, 5*time.Second))
		heal()
		p.sleep(w.between(0, 2*time.Second))
	}
}

// operate plays operators: group join, at some time in some seeds, and in the end while several groups keep user data.
func (w *world) operate(p *proc, d time.Duration) {
	if w.chance(0.6) {
		p.sleep(w.between(2*time.Second, d))
		for range 20 {
			if w.force() {
				break
			}
			p.sleep(w.between(100*time.Millisecond, time.Second))
		}
	}
	for last := w.now; ; {
		p.sleep(w.between(100*time.Millisecond, 4*time.Second))
		for _, c := range w.clusters {
			w.finish(c)
		}
		if w.now > d+10*time.Second && w.now > last+7*time.Second {
			last = w.now
			w.force()
		}
	}
}

// finish goes on with the order for a frozen group: it raises the survivor, or resumes the group if its successors lead back to it.
func (w *world) finish(c *cluster) {
	over := machine.StandingOf(c.oracle.machine).Over
	if !over.Over() || over.Released {
		return
	}
	to := w.clusterOf(over.Successor)
	for range w.clusters {
		if next := machine.StandingOf(to.oracle.machine).Over; next.Over() {
			to = w.clusterOf(next.Successor)
		}
	}
	at, op := to, &coordv1.RaiseRevision{To: int64(over.Final)}
	if to.over() {
		at, op = c, &coordv1.RaiseRevision{To: int64(over.Final) + 1<<40, Resume: over.Index}
	} else if machine.StandingOf(to.oracle.machine).Reached >= over.Final {
		return
	}
	l := at.leader()
	if l == nil {
		return
	}
	w.tell("the operator raises %s to %d for %s, resume %d", at.place, op.To, c.place, op.Resume)
	l.in(func() {
		if l.process.merger.proposed {
			return
		}
		l.process.merger.propose(op, func() {
			if w.figures.raised++; op.Resume != 0 {
				w.figures.raised--
				w.figures.resumed++
			}
		})
	})
}

// force gives a living group up for another one, by its leader.
func (w *world) force() bool {
	all := w.living()
	if len(all) < 2 || w.parted {
		return false
	}
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	l := all[0].leader()
	if l == nil {
		return false
	}
	w.tell("the operator gives %s up for %s", all[0].place, all[1].place)
	w.figures.forced++
	l.in(func() {
		if !l.process.merger.proposed {
			l.process.merger.propose(&coordv1.Dissolve{Successor: []byte(all[1].group), Force: true}, func() {})
		}
	})
	return true
}

func TestMerges(t *testing.T) {
	usual := 60
	if testing.Short() {
		usual = 10
	}
	playMerges(t, usual)
}

// playMerges plays seeds of merging groups; see the package comment for the settings.
func playMerges(t *testing.T, usual int) {
	n, from, d := campaign(t, usual, 30*time.Second)
	var all merges
	began, cpu := time.Now(), spent()
	for seed := from; seed < from+n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			all.add(playMerge(t, uint64(seed), d).figures)
		})
	}
	t.Logf("%d seeds in %v (%v of CPU): %+v", n, time.Since(began).Round(time.Second/10), (spent() - cpu).Round(time.Second/10), all)
}

func playMerge(t *testing.T, seed uint64, d time.Duration) *world {
	cryptotest.SetGlobalRandom(t, seed)
	w := newWorld(seed)
	if err := w.play(d); err != nil {
		t.Errorf("seed %d %v\n%s", seed, err, strings.Join(w.story[max(0, len(w.story)-80):], "\n"))
	}
	return w
}

func TestMergesRepeat(t *testing.T) {
	var told [2]string
	for i := range told {
		w := playMerge(t, 3, 15*time.Second)
		told[i] = fmt.Sprintf("%+v %d %v", w.figures, w.made, strings.Join(w.story, "\n"))
	}
	if told[0] != told[1] {
		t.Errorf("the same seed went two ways:\n%s\n\n%s", told[0], told[1])
	}
}
