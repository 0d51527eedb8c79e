package simulation

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
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
	groups, dissolved, emptied, left, followed, contested, tokens int
}

func (m *merges) add(n merges) {
	m.groups, m.dissolved, m.emptied = m.groups+n.groups, m.dissolved+n.dissolved, m.emptied+n.emptied
	m.left, m.followed = m.left+n.left, m.followed+n.followed
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

// operate plays operators: in some seeds one empties a group at some time, and in the end all but the one with the highest revision.
func (w *world) operate(p *proc, d time.Duration) {
	if w.chance(0.6) {
		p.sleep(w.between(2*time.Second, d))
		if all := w.living(); len(all) > 1 && !w.parted {
			w.empty(p, all[w.rng.IntN(len(all))])
		}
	}
	for {
		p.sleep(w.between(100*time.Millisecond, 4*time.Second))
		all := w.living()
		if w.now < d+10*time.Second || len(all) < 2 {
			continue
		}
		slices.SortStableFunc(all, func(a, b *cluster) int { return cmp.Compare(a.oracle.machine.Revision(), b.oracle.machine.Revision()) })
		for _, c := range all[:len(all)-1] {
			w.empty(p, c)
		}
	}
}

// empty stops the clients of a group and deletes what they keep, until the group gives itself up, or for a while.
func (w *world) empty(p *proc, c *cluster) {
	if !c.emptied {
		w.figures.emptied++
		w.tell("the operator empties %s", c.place)
	}
	c.emptied = true
	operator := c.newClient(len(c.nodes) + 100)
	for range 10 {
		if data := machine.StandingOf(c.oracle.machine).UserData; c.over() || !data.Any() {
			return
		} else if data.Keys > 0 {
			operator.wipe(p)
		}
		p.sleep(w.between(100*time.Millisecond, 2*time.Second))
	}
}

func TestMerges(t *testing.T) {
	n, from, d := campaign(t, usually(15, 60), 30*time.Second)
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
