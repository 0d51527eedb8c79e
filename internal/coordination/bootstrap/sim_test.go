package bootstrap

import (
	"container/heap"
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

// cluster configures a simulated network. Faults end at heal.
type cluster struct {
	network Network
	peers   int     // number of eligible peers
	loss    float64 // of messages
	twice   float64 // messages delivered again later
	delay   time.Duration
	split   float64       // runs with a temporary split
	oneWay  float64       // runs with a temporarily mute peer
	crash   float64       // before each action
	wipe    float64       // share of crashes with a lost data directory; the key survives
	heal    time.Duration // no faults from then on
	limit   time.Duration // all peers must know the group by then
	flaws   flaws

	voteAfterLoss bool // the flaw of a peer without a mark
	crowd         bool // more peers than E: two groups are allowed if all learn of both
}

// violation is a broken promise of a run.
type violation string

// run is one simulated bootstrap: all peers in one goroutine, in virtual time.
type run struct {
	cluster
	rng   *rand.Rand
	start time.Time
	now   time.Time
	queue agenda
	nodes []*node
	half  map[peer.ID]bool // one side of the split
	mute  peer.ID
	from  time.Time // split and mute last from here
	to    time.Time

	signers map[string]map[peer.ID]bool // of a ballot and membership
	chosen  map[GroupID]bool
	proven  map[GroupID]bool
	first   time.Time // the first certificate
	broken  violation
}

// node is one peer of a run, down while machine is nil.
type node struct {
	id      peer.ID
	key     crypto.PrivKey
	fs      *vfs.MemFS
	store   *Store
	machine *machine
	raftID  uint64
	ticking time.Time // the valid tick; others are stale
}

// happening is a scheduled tick, message or restart.
type happening struct {
	at      time.Time
	seq     int
	node    *node
	from    peer.ID
	message message
	restart bool
}

type agenda struct {
	list []happening
	seq  int
}

func (a *agenda) Len() int { return len(a.list) }
func (a *agenda) Less(i, j int) bool {
	if c := a.list[i].at.Compare(a.list[j].at); c != 0 {
		return c < 0
	}
	return a.list[i].seq < a.list[j].seq
}
func (a *agenda) Swap(i, j int) { a.list[i], a.list[j] = a.list[j], a.list[i] }
func (a *agenda) Push(x any)    { a.list = append(a.list, x.(happening)) }
func (a *agenda) Pop() any {
	last := a.list[len(a.list)-1]
	a.list = a.list[:len(a.list)-1]
	return last
}

func (a *agenda) add(h happening) {
	a.seq++
	h.seq = a.seq
	heap.Push(a, h)
}

// keyring returns n keys, the same in every run, ascending by peer id.
func keyring(t testing.TB, n int) ([]crypto.PrivKey, []peer.ID) {
	t.Helper()
	type pair struct {
		key crypto.PrivKey
		id  peer.ID
	}
	all := make([]pair, n)
	for i := range all {
		seed := make([]byte, ed25519.SeedSize)
		binary.BigEndian.PutUint64(seed, uint64(i)+1)
		key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(seed))
		require.NoError(t, err)
		id, err := peer.IDFromPrivateKey(key)
		require.NoError(t, err)
		all[i] = pair{key, id}
	}
	slices.SortFunc(all, func(a, b pair) int { return slices.Compare([]byte(a.id), []byte(b.id)) })
	var keys []crypto.PrivKey
	var ids []peer.ID
	for _, p := range all {
		keys, ids = append(keys, p.key), append(ids, p.id)
	}
	return keys, ids
}

// listed returns a network of the first e peers of the keyring.
func listed(t testing.TB, e int) Network {
	_, ids := keyring(t, e)
	return Network{Name: "test", Mode: Listed, Founders: ids}
}

func home(e int) Network { return Network{Mode: Unlisted, Name: "home", Expect: e} }

// simulate runs one seed until all peers know the group, or the limit.
func simulate(t testing.TB, w cluster, seed uint64) *run {
	t.Helper()
	r := &run{
		cluster: w,
		rng:     rand.New(rand.NewPCG(seed, 1)),
		start:   time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		half:    make(map[peer.ID]bool),
		signers: make(map[string]map[peer.ID]bool),
		chosen:  make(map[GroupID]bool),
		proven:  make(map[GroupID]bool),
	}
	r.now = r.start
	keys, ids := keyring(t, w.peers)
	for i := range keys {
		n := &node{id: ids[i], key: keys[i], fs: vfs.NewCrashableMem()}
		r.nodes = append(r.nodes, n)
		r.queue.add(happening{at: r.now.Add(r.upTo(time.Second)), node: n, restart: true})
	}
	r.plan()
	for r.queue.Len() > 0 && r.broken == "" && !r.settled() {
		h := heap.Pop(&r.queue).(happening)
		if h.at.Sub(r.start) > w.limit {
			break
		}
		r.now = h.at
		r.happen(h)
	}
	return r
}

// plan draws the faults of the run.
func (r *run) plan() {
	r.from = r.start.Add(r.upTo(4 * time.Second))
	r.to = r.from.Add(r.upTo(r.heal))
	if r.rng.Float64() < r.split {
		for _, n := range r.nodes {
			r.half[n.id] = r.rng.IntN(2) == 0
		}
	}
	if r.rng.Float64() < r.oneWay {
		r.mute = r.nodes[r.rng.IntN(len(r.nodes))].id
	}
}

func (r *run) upTo(d time.Duration) time.Duration { return time.Duration(r.rng.Int64N(int64(d) + 1)) }

func (r *run) faulty() bool { return r.now.Sub(r.start) < r.heal }

// settled reports whether every peer runs and knows a group, and any conflict.
func (r *run) settled() bool {
	return !slices.ContainsFunc(r.nodes, func(n *node) bool {
		return n.machine == nil || n.machine.state.Certificate == nil ||
			len(r.proven) > 1 && n.machine.state.Conflicting == nil
	})
}

func (r *run) happen(h happening) {
	n := h.node
	switch {
	case h.restart:
		r.boot(n)
	case n.machine == nil:
	case h.message != nil:
		r.step(n, received{from: h.from, message: h.message})
	case h.at.Equal(n.ticking):
		r.step(n, tick{connected: r.ids()})
	}
}

func (r *run) ids() []peer.ID {
	var all []peer.ID
	for _, n := range r.nodes {
		all = append(all, n.id)
	}
	return all
}

// boot starts a peer from its disk.
func (r *run) boot(n *node) {
	store, err := OpenStore(n.fs, DataDir{Dir: "/data", Marks: "/keys"}, n.id, r.network)
	if err != nil {
		r.fail("%s: %v", n.id, err)
		return
	}
	n.store = store
	if n.raftID == 0 {
		n.raftID = r.rng.Uint64() | 1
	}
	o := Options{Network: r.network, Store: store, RaftID: n.raftID}
	n.machine = newMachine(setup{
		network: r.network, key: n.key, self: n.id, raftID: n.raftID, voters: 3,
		rand: rand.New(rand.NewPCG(r.rng.Uint64(), 2)), timing: Timing{}.orDefaults(), abstains: o.abstains(n.id),
	}, store.State())
	n.machine.flaws = r.flaws
	if c := store.State().Certificate; c != nil {
		r.prove(*c) // the crash may precede every message
	}
	r.step(n, tick{connected: r.ids()})
}

func (r *run) step(n *node, ev event) {
	for _, a := range n.machine.step(r.now, ev) {
		if r.faulty() && r.rng.Float64() < r.crash {
			r.crashNode(n)
			return
		}
		r.perform(n, a)
	}
	n.ticking = n.machine.wake()
	if n.ticking.Before(r.now) {
		r.fail("%s: wakes in the past", n.id)
	}
	r.queue.add(happening{at: n.ticking, node: n})
}

func (r *run) crashNode(n *node) {
	n.machine = nil
	n.fs = n.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.rng.IntN(101), RNG: r.rng})
	if r.rng.Float64() < r.wipe {
		_ = n.fs.RemoveAll("/data")
		n.raftID = 0
		if r.voteAfterLoss {
			_ = n.fs.RemoveAll("/keys")
		}
	}
	r.queue.add(happening{at: r.now.Add(r.upTo(12 * time.Second)), node: n, restart: true})
}

func (r *run) perform(n *node, a action) {
	switch a := a.(type) {
	case save:
		if err := n.store.Save(a.state); err != nil {
			r.fail("%s: %v", n.id, err)
		}
		if a.state.Accepted.Peer == n.id && a.state.Promised == a.state.Accepted {
			r.sign(n.id, a.state.Accepted, a.state.Membership.ID())
		}
	case send:
		if m, ok := a.message.(accepted); ok {
			r.sign(n.id, m.ballot, m.group)
		}
		r.transmit(n.id, a)
	case founded:
		r.prove(a.certificate)
	case conflicted:
		if len(r.proven) < 2 {
			r.fail("%s sees a conflict where there is none", n.id)
		}
	case malformed:
		if !r.crowd && r.flaws == (flaws{}) {
			r.fail("%s refuses a message of %s: %v", n.id, a.from, a.err)
		}
	}
}

// sign records acceptances by ballot: a quorum at one ballot chooses a membership, with or without a
// certificate.
func (r *run) sign(p peer.ID, b Ballot, g GroupID) {
	key := fmt.Sprint(b, g)
	if r.signers[key] == nil {
		r.signers[key] = make(map[peer.ID]bool)
	}
	r.signers[key][p] = true
	if len(r.signers[key]) < r.network.Quorum() {
		return
	}
	r.chosen[g] = true
	if len(r.chosen) > 1 && !r.crowd {
		r.fail("two memberships were chosen")
	}
}

func (r *run) prove(c Certificate) {
	if err := r.network.Verify(c); err != nil {
		r.fail("false certificate: %v", err)
	}
	if r.first.IsZero() {
		r.first = r.now
	}
	r.proven[c.GroupID()] = true
	if len(r.proven) > 1 && !r.crowd {
		r.fail("two certificates")
	}
}

func (r *run) transmit(from peer.ID, s send) {
	m, err := decode(r.network.ID(), encode(r.network.ID(), s.message))
	if err != nil {
		r.fail("%s sends what cannot be read: %v", from, err)
		return
	}
	if r.lost(from, s.to) {
		return
	}
	i := slices.IndexFunc(r.nodes, func(n *node) bool { return n.id == s.to })
	if i < 0 {
		return
	}
	h := happening{node: r.nodes[i], from: from, message: m}
	h.at = r.now.Add(5*time.Millisecond + r.upTo(r.delay))
	r.queue.add(h)
	if r.rng.Float64() < r.twice {
		h.at = h.at.Add(r.upTo(5 * time.Second))
		r.queue.add(h)
	}
}

func (r *run) lost(from, to peer.ID) bool {
	if !r.faulty() {
		return false
	}
	during := !r.now.Before(r.from) && r.now.Before(r.to)
	return r.rng.Float64() < r.loss || during && (r.half[from] != r.half[to] || from == r.mute)
}

// fail keeps the first violation.
func (r *run) fail(format string, args ...any) {
	if r.broken == "" {
		r.broken = violation(fmt.Sprintf(format, args...))
	}
}
