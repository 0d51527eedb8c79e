package simulation

import (
	"runtime/debug"
	"slices"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/membership"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
)

// tick is the members' tick, and the base of their timeouts.
const tick = 50 * time.Millisecond

// node is a peer: a disk, and at times a process that is a member or waits to be one.
type node struct {
	*cluster
	name    string
	disk    *disk
	rate    float64       // of its clock
	latency time.Duration // longest sync of its disk
	process *process      // nil while down
	paused  int           // number of present faults
	silent  bool          // without a notice: the power is off
	wiped   time.Duration // time of its disk's loss; 0: never

	features machine.Features // of the installed program
	upgraded bool             // it ever ran the later program

	gone bool // it went over to another group, as another node
}

// process is one run of a member.
type process struct {
	store   *raftlog.Storage
	config  replica.Config
	born    time.Duration
	replica *replica.Replica
	inbox   []func()
	ticked  bool
	holding bool          // the replica's messages are released soon
	busy    time.Duration // busy with its disk until then
	next    uint64
	waiting map[uint64]func(replica.Answer)
	term    uint64 // last term of its leadership
	doctor  doctor

	announced map[uint64]announcement // by other members
	raising   bool

	compared uint64
	merger   merger
}

// local returns the time on the node's clock.
func (n *node) local() time.Duration { return time.Duration(float64(n.now) * n.rate) }

// start begins a process on the disk.
func (n *node) start() {
	fs := n.disk.open()
	store, err := raftlog.Open(raftlog.Options{FS: fs, Dir: "group", Rand: randomness{n.rng}})
	if n.disk.lacks && err != nil {
		n.tell("%s refuses its disk, and begins anew: %v", n.name, err)
		n.disk = newDisk()
		n.figures.noticed++
		n.start()
		return
	}
	if n.disk.lacks {
		n.breach("D2", "%s opens a disk that lost acknowledged writes", n.name)
		return
	}
	if err != nil {
		n.breach("D1", "%s cannot open its disk: %v", n.name, err)
		return
	}
	n.must(store.Bind(n.group))
	n.launch(store)
}

func (n *node) launch(store *raftlog.Storage) {
	p := &process{
		store: store, waiting: make(map[uint64]func(replica.Answer)), born: n.now, announced: make(map[uint64]announcement),
	}
	p.config = replica.Config{
		Features: n.features, Storage: store, Tick: tick, SnapshotEntries: n.snapshotEvery, Trail: n.snapshotEvery / 2,
		ClientIdle: n.clientIdle, ExpiryRate: n.expiryRate,
		Applied: func(a replica.Applied) { n.oracle.applied(n.name, a) },
	}
	var err error
	p.replica, err = replica.New(p.config)
	if err != nil && n.tooOld(err) {
		n.must(store.Close())
		n.start()
		return
	}
	if err != nil {
		n.breach("D1", "%s cannot begin again: %v", n.name, err)
		return
	}
	p.merger = newMerger(n, p)
	n.tell("%s starts as %x, founded %v", n.name, store.Member(), store.HasSnapshot())
	n.process = p
	n.tick(p)
	n.after(0, func() { n.turn() })
}

// tick runs a process's clock until its end. A pause loses ticks, not time.
func (n *node) tick(p *process) {
	n.after(time.Duration(float64(tick)/n.rate), func() {
		if n.process == p {
			p.ticked = true
			n.tick(p)
			n.turn()
		}
	})
}

// in passes an event to the present process, if it still runs by then.
func (n *node) in(do func()) {
	if p := n.process; p != nil && len(p.inbox) < 10_000 {
		p.inbox = append(p.inbox, do)
		n.turn()
	}
}

// turn lets the process work, unless it is stopped or waits for its disk.
func (n *node) turn() {
	p := n.process
	if p == nil || n.paused > 0 || n.fail != nil || n.now < p.busy {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			n.breach("P0", "%s panics: %v\n%s", n.name, r, debug.Stack())
		}
	}()
	if p.ticked {
		p.ticked = false
		p.replica.Tick(n.local())
		n.treat(p)
		if p.merger.look(); n.process != p {
			return
		}
	}
	inbox := p.inbox
	p.inbox = nil
	for _, do := range inbox {
		do()
		if n.disk.died() {
			n.crash()
		}
		if n.process != p {
			return
		}
	}
	for p.replica.Ready() && n.process == p && n.now >= p.busy && n.fail == nil {
		n.work(p)
	}
	if p.replica.Holds() && !p.holding && n.process == p {
		p.holding = true
		n.after(replica.HoldFor, func() {
			if n.process == p {
				p.holding = false
				p.replica.Release()
				n.turn()
			}
		})
	}
}

// work is one turn of the member: see the package comment of replica.
func (n *node) work(p *process) {
	n.dispatch(p, p.replica.Prepare(n.local()))
	out, err := p.replica.Apply(n.local())
	if err != nil && n.tooOld(err) {
		return
	}
	if err != nil {
		n.breach("P1", "%s cannot apply: %v", n.name, err)
		return
	}
	n.observe(p, out)
	syncs := n.disk.syncs.Load()
	late, err := p.replica.Persist()
	if n.disk.died() {
		n.crash() // as required after a disk error
		return
	}
	if err != nil {
		n.breach("P1", "%s cannot persist: %v", n.name, err)
		return
	}
	if n.disk.syncs.Load() == syncs {
		n.dispatch(p, late)
		return
	}
	p.busy = n.now + n.between(n.latency/4, n.latency)
	n.at(p.busy, func() {
		if n.process == p {
			n.dispatch(p, late)
			n.turn()
		}
	})
}

// observe checks and delivers the results of applying.
func (n *node) observe(p *process, out replica.Output) {
	s := p.replica.Status()
	if s.Applied != p.compared {
		p.compared = s.Applied
		n.oracle.compare(n.name, p.replica.Machine())
	}
	if n.oracle.configured(s); s.Leads {
		term := s.Header.Term
		if p.term != term {
			p.term = term
			n.figures.leaders++
			n.tell("%s leads term %d", n.name, term)
			n.oracle.led(term, p.replica.ID())
		}
		if s.Promoted {
			n.oracle.promoted(term)
		}
	}
	for _, a := range out.Answers {
		if done := p.waiting[a.ID]; done != nil {
			delete(p.waiting, a.ID)
			done(a)
		}
	}
	if out.Restored {
		n.figures.restored++
		n.tell("%s took a snapshot", n.name)
	}
	if c := out.Checkpoint; c != nil {
		n.oracle.checkpoint(n.name, c)
	}
	if image := out.Image; image != nil {
		n.after(n.between(0, 200*time.Millisecond), func() {
			if n.process == p {
				n.in(func() { n.sound(p.replica.Written(image, image.Write())) })
			}
		})
	}
}

// sound reports a disk error as a breach, unless it was planned: then the process dies.
func (n *node) sound(err error) {
	if !n.disk.died() {
		n.must(err)
	}
}

// dispatch sends messages to other members.
func (n *node) dispatch(p *process, messages []*pb.Message) {
	for _, m := range messages {
		to := n.nodeOf(m.GetTo())
		if to < 0 {
			continue // the id has no owner any more
		}
		if m.GetType() == pb.MsgSnap {
			n.sendSnapshot(p, n.nodes[to], m)
			continue
		}
		wire, err := proto.Marshal(m)
		n.must(err)
		said := n.announce(p)
		n.net.send(n.name, n.nodes[to].name, func() { n.nodes[to].receive(wire, said) })
	}
}

// receive takes a message from the network.
func (n *node) receive(wire []byte, said announcement) {
	p := n.process
	n.in(func() {
		m := new(pb.Message)
		n.must(proto.Unmarshal(wire, m))
		if m.GetTo() == p.replica.ID() && n.fits(p, m.GetFrom(), said) {
			n.must(p.replica.Step(m))
		}
	})
}

// sendSnapshot carries a snapshot with its state, or fails.
func (n *node) sendSnapshot(p *process, to *node, m *pb.Message) {
	sent := func(ok bool) {
		n.after(n.between(0, 100*time.Millisecond), func() {
			if n.process == p {
				n.in(func() { p.replica.SnapshotSent(m.GetTo(), ok) })
			}
		})
	}
	state, err := p.store.State(m.GetSnapshot())
	if fault.KindOf(err) == fault.NotFound && err != nil { // a newer one has replaced it
		sent(false)
		return
	}
	n.must(err)
	image, err := readAll(state)
	n.must(err)
	wire, err := proto.Marshal(m)
	n.must(err)
	said := n.announce(p)
	n.after(n.between(0, 300*time.Millisecond), func() {
		if !n.net.reaches(n.name, to.name) || n.chance(n.net.loss) || to.process == nil {
			sent(false)
			return
		}
		to.takeSnapshot(wire, image, said)
		sent(true)
	})
}

func (n *node) takeSnapshot(wire, image []byte, said announcement) {
	p := n.process
	n.in(func() {
		m := new(pb.Message)
		n.must(proto.Unmarshal(wire, m))
		if m.GetTo() != p.replica.ID() || !n.fits(p, m.GetFrom(), said) {
			return
		}
		if n.sound(p.store.Write(m.GetSnapshot(), blob(image))); n.disk.died() {
			return
		}
		machine, err := p.config.Read(m.GetSnapshot())
		n.must(err)
		n.must(p.replica.Restore(m, machine))
	})
}

// serve takes a client's request; it may call answer later, or never.
func (n *node) serve(from string, r request, answer func(reply)) {
	p := n.process
	if p == nil && !n.silent {
		answer(reply{err: errRefused()})
		return
	}
	n.in(func() {
		if r.local != nil {
			answer(reply{value: r.local(p.replica.Machine())})
			return
		}
		p.next++
		id := p.next
		switch {
		case r.command != nil:
			packed, err := p.config.Pack(r.command)
			if err != nil {
				answer(reply{err: err})
				return
			}
			p.waiting[id] = func(a replica.Answer) { answer(reply{result: coordtest.Outcome(a.Result), err: a.Err}) }
			p.replica.Propose(id, packed)
		case r.read != nil:
			p.waiting[id] = func(a replica.Answer) {
				if a.Err != nil {
					answer(reply{err: a.Err})
					return
				}
				answer(reply{value: r.read(p.replica.Machine())})
			}
			p.replica.Read(id)
		default:
			p.waiting[id] = func(a replica.Answer) { n.renewed(r, a, answer) }
			p.replica.KeepAlive(id, from, r.keep)
		}
	})
}

// errRefused is a host's answer for a dead process.
func errRefused() error { return fault.New("dial", fault.Unavailable, "connection refused") }

// renewed records a promise to a client at its sending.
func (n *node) renewed(r request, a replica.Answer, answer func(reply)) {
	for _, kept := range a.Renewals {
		if kept.TTL > 0 {
			n.oracle.leases.Renewed(kept.ID, r.sent)
		}
	}
	answer(reply{kept: a.Renewals, err: a.Err})
}

// crash ends the process; its disk loses unsynced data.
func (n *node) crash() {
	if n.process == nil {
		return
	}
	n.figures.crashes++
	n.stop()
	n.after(n.between(50*time.Millisecond, n.outage), func() {
		if n.process == nil && !n.gone {
			n.start()
		}
	})
}

// stop ends the process at once.
func (n *node) stop() {
	p := n.process
	n.process, n.silent = nil, n.chance(0.5)
	n.disk.crash(n.rng)
	_ = p.store.Close()
	n.tell("%s dies", n.name)
	n.hangUp(p.replica.ID())
}

// hangUp tells other members of a process that has ended, as closed connections do. A host without power says nothing.
func (n *node) hangUp(id uint64) {
	if n.silent {
		return
	}
	for _, other := range n.nodes {
		if other == n {
			continue
		}
		n.net.send(n.name, other.name, func() {
			if p := other.process; p != nil {
				other.in(func() { p.replica.Unreachable(id, true) })
			}
		})
	}
}

// wipe loses the disk and with it the identity.
func (n *node) wipe() {
	n.crash()
	n.disk = newDisk()
	n.wiped = n.now
	n.figures.wiped++
	n.tell("%s loses its disk", n.name)
}

// doctor holds a leader's data for repairs of the membership.
type doctor struct {
	tracker *membership.Tracker
	term    uint64
	looked  time.Duration
	changed time.Duration
	pending bool
}

// treat lets a leader repair the membership.
func (n *node) treat(p *process) {
	d := &p.doctor
	if n.local() < d.looked+250*time.Millisecond {
		return
	}
	d.looked = n.local()
	s := p.replica.Status()
	if !s.Promoted {
		d.tracker = nil
		return
	}
	if d.tracker == nil || d.term != s.Header.Term {
		*d = doctor{tracker: membership.NewTracker(p.replica.ID()), term: s.Header.Term, looked: d.looked, changed: n.local()}
	}
	n.raise(p, s)
	progress := make([]membership.Progress, len(s.Members))
	for i, m := range s.Members {
		progress[i] = membership.Progress{Peer: membership.Peer{ID: m.ID, Name: m.Peer}, Voter: m.Voter, Match: m.Match, Active: m.Active}
	}
	state := membership.State{
		Leader: p.replica.ID(), Members: d.tracker.Observe(n.local(), s.Commit, progress),
		Candidates: n.candidates(p), Changing: d.pending || s.Joint, Quiet: n.local() - d.changed,
	}
	change, ok := n.repair.Decide(state)
	if !ok {
		return
	}
	n.tell("%s decides %+v", n.name, change)
	d.changed = n.local()
	if change.Transfer != 0 {
		n.must(p.replica.Transfer(change.Transfer))
		return
	}
	p.next++
	d.pending = true
	p.waiting[p.next] = func(a replica.Answer) {
		d.pending, d.changed = false, n.local()
		if a.Err == nil {
			n.figures.changes++
			if i := n.nodeOf(change.Add.ID); i >= 0 && n.nodes[i].process.store.HasSnapshot() {
				n.figures.rejoined++
			}
		} else {
			n.tell("%s: no change: %v", n.name, a.Err)
		}
	}
	p.replica.Change(p.next, asChange(change))
}

func asChange(c membership.Change) (r replica.Change) {
	for _, id := range c.Promote {
		r.Voters = append(r.Voters, replica.Member{ID: id})
	}
	if c.Add.ID != 0 {
		r.Learners = []replica.Member{{ID: c.Add.ID, Peer: c.Add.Name}}
	}
	if c.Remove != 0 {
		r.Remove = []uint64{c.Remove}
	}
	return r
}

// candidates returns the reachable peers that offer to be members: new ones, or ones that noticed their
// removal.
func (n *node) candidates(p *process) (all []membership.Peer) {
	for _, other := range n.nodes {
		if q := other.process; q != nil && q != p && other.paused == 0 && !q.belongs() && other.features.Levels.Supports(p.replica.Machine().Level()) &&
			n.net.reaches(n.name, other.name) && n.net.reaches(other.name, n.name) {
			all = append(all, membership.Peer{ID: q.store.Member(), Name: other.name})
		}
	}
	return all
}

// belongs reports whether a process is a member by its own knowledge, of a group with a leader.
func (p *process) belongs() bool {
	s := p.replica.Status()
	return s.Leader.ID != 0 && slices.ContainsFunc(s.Members, func(m replica.MemberStatus) bool { return m.ID == p.replica.ID() })
}
