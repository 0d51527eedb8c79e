package simulation

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const groupName = "the group of the simulation"

// cluster holds peers, clients, and the checks on them.
type cluster struct {
	*scheduler
	plan
	net     *network
	nodes   []*node
	oracle  *oracle
	history *histories
	figures figures
	calm    bool // the load is over
	healed  bool // the faults are over
	written int

	resources map[string]*resource

	group string // id of the group
	place string // begins the names of peers and clients
	world *world // of merges; nil without
}

// plan holds the initial draws of a seed.
type plan struct {
	peers, voters int
	clients       int
	ttl           time.Duration // the shortest
	idle          time.Duration // longest pause between two actions of a client
	outage        time.Duration // longest downtime of a process
	snapshotEvery uint64        // entries
	clientIdle    time.Duration // 0: usual
	expiryRate    int           // the same
	mixed         bool          // the peers begin with the former program
	repair        membership.Config
	quiet         bool // clients only publish instances
	emptied       bool // an operator stopped the clients, and deletes what they keep
	crowded       bool // clients only wait for locks and work under them
	bold          bool // clients try everything, with small quotas
}

// figures counts events.
type figures struct {
	commands, unknown, reads, renewals, grants, batches, compacted int
	leaders, crashes, wiped, restored, changes, expired, rejoined  int
	noticed                                                        int // lost writes
	upgrades, downgrades, raised, unfit, tooOld                    int
}

func (f *figures) add(g figures) {
	f.commands, f.unknown, f.reads, f.renewals = f.commands+g.commands, f.unknown+g.unknown, f.reads+g.reads, f.renewals+g.renewals
	f.grants, f.batches, f.compacted, f.leaders = f.grants+g.grants, f.batches+g.batches, f.compacted+g.compacted, f.leaders+g.leaders
	f.crashes, f.wiped, f.restored, f.changes = f.crashes+g.crashes, f.wiped+g.wiped, f.restored+g.restored, f.changes+g.changes
	f.expired, f.rejoined, f.noticed = f.expired+g.expired, f.rejoined+g.rejoined, f.noticed+g.noticed
	f.upgrades, f.downgrades, f.raised = f.upgrades+g.upgrades, f.downgrades+g.downgrades, f.raised+g.raised
	f.unfit, f.tooOld = f.unfit+g.unfit, f.tooOld+g.tooOld
}

func newCluster(seed uint64) *cluster {
	w := newScheduler(seed)
	c := &cluster{scheduler: w, net: newNetwork(w), resources: make(map[string]*resource), group: groupName}
	c.draw()
	c.begin()
	return c
}

// begin starts the peers and the clients of a cluster whose plan is drawn.
func (c *cluster) begin() {
	c.oracle = newOracle(c.scheduler, &c.figures)
	c.history = newHistories(c.oracle)
	c.oracle.ended = c.history.ended
	for i := range c.peers {
		n := c.newNode(fmt.Sprint("peer-", i))
		if c.mixed {
			n.features = former()
		}
		n.upgraded = !c.mixed
	}
	c.found()
	c.spawn(c.configure)
	for i := range c.clients {
		client := c.newClient(i)
		c.spawn(client.behave)
		c.spawn(client.keepAlive)
	}
	for i := range 2 {
		c.spawn(func(p *proc) { c.watch(p, i) })
	}
}

// newNode adds a peer with an empty disk.
func (c *cluster) newNode(name string) *node {
	n := &node{cluster: c, name: c.place + name, disk: newDisk(), rate: c.drift(), latency: 4 * time.Millisecond, features: later()}
	c.nodes = append(c.nodes, n)
	return n
}

func (c *cluster) draw() {
	c.plan = plan{
		peers: 4 + c.rng.IntN(2), voters: 3, clients: 3 + c.rng.IntN(3),
		ttl: time.Second, idle: c.between(100*time.Millisecond, time.Second),
		outage: c.between(500*time.Millisecond, 12*time.Second), snapshotEvery: uint64(20 + c.rng.IntN(200)),
	}
	if c.chance(0.2) {
		c.peers, c.voters = 6, 5
	} else if c.chance(0.05) {
		c.peers, c.voters = 1, 1
	}
	if c.chance(0.3) {
		c.clientIdle = patience + 4*time.Second
	}
	if c.chance(0.2) {
		c.expiryRate = 5 + c.rng.IntN(20)
	}
	c.mixed = c.chance(0.5)
	c.repair = membership.Config{
		Voters: c.voters, Patience: c.between(4*time.Second, 15*time.Second), Returned: 2 * time.Second,
		Stable: time.Second, Contact: 1500 * time.Millisecond, Interval: time.Second,
	}
}

// drift draws the rate of a clock.
func (c *cluster) drift() float64 { return 1 + skew*(c.rng.Float64()-0.5) }

// found bootstraps the group on the first peers' disks, and starts all peers.
func (c *cluster) found() {
	stores := make([]*raftlog.Storage, len(c.nodes))
	var voters []replica.Member
	for i, n := range c.nodes {
		var err error
		stores[i], err = raftlog.Open(raftlog.Options{FS: n.disk.open(), Dir: "group", Rand: randomness{c.rng}})
		c.must(err)
		if i < c.voters {
			voters = append(voters, replica.Member{ID: stores[i].Member(), Peer: n.name})
		}
	}
	for i, n := range c.nodes {
		if i < c.voters {
			c.must(replica.Bootstrap(stores[i], c.group, voters))
		} else {
			c.must(stores[i].Bind(c.group))
		}
		n.launch(stores[i])
	}
}

// configure shortens the group's timeouts.
func (c *cluster) configure(p *proc) {
	admin := c.newClient(99)
	limits := coord.DefaultLimits()
	limits.MinTTL, limits.HistoryEvents = 500, uint32(60+c.rng.IntN(400))
	if c.bold {
		limits.PerOwner.Leases = boldLeases
	}
	admin.do(p, &coordv1.Configure{Limits: limits.Message()}, 30*time.Second)
}

// nodeOf returns the peer that has a member's id now, -1 without one.
func (c *cluster) nodeOf(id uint64) int {
	return slices.IndexFunc(c.nodes, func(n *node) bool { return n.process != nil && n.process.replica.ID() == id })
}

func (c *cluster) resource(name string) *resource {
	if c.resources[name] == nil {
		c.resources[name] = new(resource)
	}
	return c.resources[name]
}

// play runs the group under faults, heals it, and checks the outcome.
func (c *cluster) play(d time.Duration) error {
	defer c.end()
	c.spawn(func(p *proc) { c.nemesis(p, d) })
	c.run(d)
	c.calm = true
	for end := d + recovery; c.now < end && c.fail == nil && !(c.healed && c.strong()); {
		c.run(c.now + time.Second)
	}
	c.run(c.now + patience)
	c.settle()
	c.settleLevel()
	c.history.check(c.scheduler)
	for _, n := range c.nodes {
		n.shut()
	}
	return c.fail
}

// shut releases the resources of a process.
func (n *node) shut() {
	if p := n.process; p != nil {
		_ = p.store.Close()
	}
}

// recovery is the group's limit to have all voters again after the last fault.
const recovery = 40 * time.Second

// settle requires that a healed group works and agrees (Q1).
func (c *cluster) settle() {
	if c.fail != nil {
		return
	}
	done := false
	c.spawn(func(p *proc) {
		admin := c.newClient(98)
		_, r, ok := admin.do(p, &apiv1.TxnRequest{Then: []*apiv1.TxnStep{put("last", "word", 0)}}, 10*time.Second)
		done = ok && r.Err == nil
	})
	for end := c.now + 12*time.Second; c.now < end && c.fail == nil && !(done && c.alike() >= c.voters); {
		c.run(c.now + 70*time.Millisecond)
	}
	switch {
	case c.fail != nil:
	case !done:
		c.breach("Q1", "a healed group does not answer: %s", c.standing())
	case c.alike() < c.voters:
		c.breach("Q1", "%d members have the last state, there should be %d: %s", c.alike(), c.voters, c.standing())
	default:
		c.settleLeases()
	}
}

// settleLeases requires that the leases of clients that are gone end (Q1).
func (c *cluster) settleLeases() {
	for end := c.now + 2*recovery; c.now < end && c.fail == nil && c.oracle.machine.LeaseCount() > 0; {
		c.run(c.now + 500*time.Millisecond)
	}
	if left := c.oracle.machine.Leases(); len(left) > 0 && c.fail == nil {
		c.breach("Q1", "%d leases never end, the first one is %+v", len(left), left[0])
	}
}

// alike counts the members with the last state.
func (c *cluster) alike() (n int) {
	want := c.oracle.machine.Image().Hash()
	for _, node := range c.nodes {
		if p := node.process; p != nil && c.oracle.conf.has(p.replica.ID()) && p.replica.Machine().Image().Hash() == want {
			n++
		}
	}
	return n
}

// standing describes each peer.
func (c *cluster) standing() (all string) {
	for _, n := range c.nodes {
		all += "\n  " + n.name
		if p := n.process; p != nil {
			s := p.replica.Status()
			all += fmt.Sprintf(" %x term %d leader %x applied %d commit %d joint %v paused %d:", p.replica.ID(), s.Header.Term, s.Leader.ID, s.Applied, s.Commit, s.Joint, n.paused)
			for _, m := range s.Members {
				all += fmt.Sprintf(" %x=%s(%v,%d,%v)", m.ID, m.Peer, m.Voter, m.Match, m.Active)
			}
		} else {
			all += " down"
		}
	}
	return all
}

// randomness is a reader of random bytes.
type randomness struct{ rng *rand.Rand }

func (r randomness) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.rng.Uint32())
	}
	return len(b), nil
}

// blob is a snapshot that keeps its bytes.
type blob []byte

func (b blob) WriteTo(w io.Writer) (int64, error) { return bytes.NewReader(b).WriteTo(w) }

func readAll(r io.ReadCloser) ([]byte, error) {
	defer func() { _ = r.Close() }()
	return io.ReadAll(r)
}
