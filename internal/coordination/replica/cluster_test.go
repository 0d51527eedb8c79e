package replica_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

const tick = 50 * time.Millisecond

// cluster is a group in one goroutine: its clock moves by ticks, its network delivers in order
// what is not cut.
type cluster struct {
	t      *testing.T
	now    time.Duration
	random *rand.Rand
	nodes  []*node
	wires  []*pb.Message
	cut    map[[2]uint64]bool // from, to
	next   uint64
	adjust func(*replica.Config)

	hold bool     // snapshots do not arrive
	held []func() // each lets one arrive
}

type node struct {
	*replica.Replica
	c       *cluster
	fs      *vfs.MemFS
	store   *raftlog.Storage
	down    bool
	answers map[uint64]replica.Answer
	applied []replica.Applied
	images  []*replica.Image

	refuses bool  // it may stop
	stopped error // it has
}

const groupID = "a group id of thirty-two bytes..."

func newCluster(t *testing.T, voters int, adjust func(*replica.Config)) *cluster {
	return newSeeded(t, voters, 1, adjust)
}

func newSeeded(t *testing.T, voters int, seed uint64, adjust func(*replica.Config)) *cluster {
	cryptotest.SetGlobalRandom(t, seed)
	c := &cluster{t: t, random: rand.New(rand.NewPCG(seed, 2)), cut: make(map[[2]uint64]bool), adjust: adjust}
	var members []replica.Member
	for range voters {
		n := c.add()
		members = append(members, n.member())
	}
	for _, n := range c.nodes {
		require.NoError(t, replica.Bootstrap(n.store, groupID, members))
		n.start()
	}
	return c
}

// add makes a node with an empty folder.
func (c *cluster) add() *node {
	n := &node{c: c, fs: vfs.NewCrashableMem()}
	n.open()
	c.nodes = append(c.nodes, n)
	return n
}

func (n *node) open() {
	var err error
	n.store, err = raftlog.Open(raftlog.Options{FS: n.fs, Dir: "group"})
	require.NoError(n.c.t, err)
	n.c.t.Cleanup(func() { _ = n.store.Close() })
}

func (n *node) member() replica.Member {
	return replica.Member{ID: n.store.Member(), Peer: fmt.Sprintf("peer-%x", n.store.Member())}
}

func (n *node) start() {
	config := replica.Config{
		Storage: n.store, Tick: tick, SnapshotEntries: 40, Trail: 10,
		Applied: func(a replica.Applied) { n.applied = append(n.applied, a) },
	}
	if n.c.adjust != nil {
		n.c.adjust(&config)
	}
	var err error
	n.Replica, err = replica.New(config)
	require.NoError(n.c.t, err)
	n.down, n.answers, n.applied, n.images = false, make(map[uint64]replica.Answer), nil, nil
}

// crash loses what was not synced, and the memory.
func (n *node) crash() {
	n.down = true
	fs := n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(n.c.random.Uint64(), 3))})
	_ = n.store.Close()
	n.fs = fs
}

func (n *node) restart() {
	n.open()
	n.start()
}

func (c *cluster) by(id uint64) *node {
	for _, n := range c.nodes {
		if n.store.Member() == id {
			return n
		}
	}
	return nil
}

// turn works off what one node has to do.
func (n *node) turn() {
	for !n.down && n.Ready() {
		n.c.wires = append(n.c.wires, n.Prepare(n.c.now)...)
		out, err := n.Apply(n.c.now)
		if err != nil && n.refuses {
			n.down, n.stopped = true, err
			return
		}
		require.NoError(n.c.t, err)
		for _, a := range out.Answers {
			require.NotContains(n.c.t, n.answers, a.ID, "answered twice")
			n.answers[a.ID] = a
		}
		if out.Image != nil {
			n.images = append(n.images, out.Image)
		}
		late, err := n.Persist()
		require.NoError(n.c.t, err)
		n.c.wires = append(n.c.wires, late...)
	}
}

// settle works and delivers until nothing moves. Raft asks a member that lost acknowledged entries for ever, without a pause
// on this network: the next heartbeat stops it.
func (c *cluster) settle() {
	for range 1000 {
		for _, n := range c.nodes {
			n.turn()
			for !n.down && len(n.images) > 0 {
				image := n.images[0]
				n.images = n.images[1:]
				require.NoError(c.t, n.Written(image, image.Write()))
			}
		}
		if len(c.wires) == 0 && !c.release() {
			return
		}
		wires := c.wires
		c.wires = nil
		for _, m := range wires {
			c.deliver(m)
		}
	}
}

// release lets messages go that wait for entries, and reports whether there are any.
func (c *cluster) release() (some bool) {
	for _, n := range c.nodes {
		if !n.down && n.Holds() {
			n.Release()
			some = true
		}
	}
	return some
}

func (c *cluster) deliver(m *pb.Message) {
	to, from := c.by(m.GetTo()), c.by(m.GetFrom())
	if to == nil || to.down || c.cut[[2]uint64{m.GetFrom(), m.GetTo()}] {
		if m.GetType() == pb.MsgSnap && !from.down {
			from.SnapshotSent(m.GetTo(), false)
		}
		return
	}
	b, err := proto.Marshal(m)
	require.NoError(c.t, err)
	m = new(pb.Message)
	require.NoError(c.t, proto.Unmarshal(b, m))
	if m.GetType() != pb.MsgSnap {
		require.NoError(c.t, to.Step(m))
		return
	}
	state, err := from.store.State(m.GetSnapshot())
	if fault.KindOf(err) == fault.NotFound && err != nil { // a newer one has replaced it
		from.SnapshotSent(m.GetTo(), false)
		return
	}
	require.NoError(c.t, err)
	var buf bytes.Buffer
	_, err = buf.ReadFrom(state)
	require.NoError(c.t, err)
	require.NoError(c.t, state.Close())
	restore := func() {
		require.NoError(c.t, to.store.Write(m.GetSnapshot(), &buf))
		machine, err := (&replica.Config{Storage: to.store}).Read(m.GetSnapshot())
		require.NoError(c.t, err)
		require.NoError(c.t, to.Restore(m, machine))
	}
	if c.hold {
		c.held = append(c.held, restore)
	} else {
		restore()
	}
	from.SnapshotSent(m.GetTo(), !c.hold)
}

// run lets time pass.
func (c *cluster) run(d time.Duration) {
	for end := c.now + d; c.now < end; {
		c.now += tick
		for _, n := range c.nodes {
			if !n.down {
				n.Tick(c.now)
			}
		}
		c.settle()
	}
}

func (c *cluster) until(what string, ok func() bool) {
	c.t.Helper()
	for end := c.now + 30*time.Second; !ok(); {
		require.Less(c.t, c.now, end, what)
		c.run(tick)
	}
}

// leader waits for the one that serves.
func (c *cluster) leader() *node {
	c.t.Helper()
	var found *node
	c.until("a leader", func() bool {
		found = nil
		for _, n := range c.nodes {
			if s := n.Status; !n.down && s().Promoted && (found == nil || s().Header.Term > found.Status().Header.Term) {
				found = n
			}
		}
		return found != nil
	})
	return found
}

func (c *cluster) isolate(n *node, cut bool) {
	for _, other := range c.nodes {
		c.cut[[2]uint64{n.ID(), other.ID()}] = cut
		c.cut[[2]uint64{other.ID(), n.ID()}] = cut
	}
}

func (c *cluster) id() uint64 {
	c.next++
	return c.next
}

func (n *node) propose(cmd *coordv1.Command) uint64 {
	packed, err := new(replica.Config).Pack(cmd)
	require.NoError(n.c.t, err)
	id := n.c.id()
	n.Propose(id, packed)
	return id
}

// do proposes and waits for the answer.
func (n *node) do(op proto.Message) ops.Result {
	n.c.t.Helper()
	cmd := coordtest.Command("owner", op)
	a := n.await(n.propose(cmd))
	require.NoError(n.c.t, a.Err)
	return coordtest.Outcome(a.Result)
}

func (n *node) await(id uint64) replica.Answer {
	n.c.t.Helper()
	n.c.settle()
	n.c.until("an answer", func() bool { _, ok := n.answers[id]; return ok })
	return n.answers[id]
}

func put(key, value string) *apiv1.TxnRequest {
	return &apiv1.TxnRequest{Then: []*apiv1.TxnStep{coordtest.Put(key, value, 0)}}
}

func (c *cluster) agree() {
	c.t.Helper()
	c.until("agreement", func() bool {
		for _, n := range c.nodes {
			if !n.down && n.Machine().Image().Hash() != c.nodes[0].Machine().Image().Hash() {
				return false
			}
		}
		return true
	})
}
