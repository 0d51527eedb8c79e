package member

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Transport sends messages to the other members.
type Transport interface {
	// Send takes messages, in order for each member, and returns at once; it may drop any. The transport owns
	// the messages, but must not change the data they share. It may call Peer, Members and Status of the
	// Member.
	Send(messages []*pb.Message)
	// Recheck is called after a change of the members.
	Recheck()
}

// Config configures a Member. All fields are required.
type Config struct {
	// Replica has a Logger; its Applied, if set, is called from the loop, and must neither block nor call the Member.
	Replica replica.Config
	// Transport delivers messages to Receive as soon as the Member runs.
	Transport Transport
	// Fatal is called once, from a goroutine of the Member: its owner closes this Member or ends the process. It must not call Close itself.
	Fatal func(error)
}

// stall is the longest pause of the loop, for example on a dead disk, before a fatal error.
const stall = 30 * time.Second

// Lengths of the queues to the loop.
const (
	maxRequests = 4096
	maxMessages = 1024
	maxEvents   = 64
)

// Member runs one member of the group. All methods are safe for concurrent use.
type Member struct {
	// Checkpoints are the hashes of the state, for comparison with other members.
	Checkpoints Checkpoints

	config Config
	began  time.Time // the replica's clock starts
	tick   time.Duration

	inbox inbox

	// state guards the machine and the deadlines, which the loop changes and others read.
	state   sync.RWMutex
	replica *replica.Replica
	header  coord.Header

	revision atomic.Int64 // of the state
	watchers watchers
	claims   claims
	status   atomic.Pointer[replica.Status]
	change   pause.Broadcast // of role, term or members

	restoring sync.Mutex // one snapshot of the leader at a time
	turns     atomic.Uint64
	stop      chan struct{} // closed by Close
	closing   sync.Once
	done      chan struct{} // closed at the end of the loop
	failed    atomic.Pointer[error]
	workers   sync.WaitGroup // loop, watchdog, writer of images, hashing of checkpoints
}

// inbox holds the queues to the loop.
type inbox struct {
	requests  chan request
	messages  chan arrival
	events    chan func(*replica.Replica) error
	barriers  readIndexBatcher
	piggyback piggybackQueue
}

// arrival is another member's message, with the state of a snapshot.
type arrival struct {
	message *pb.Message
	machine *machine.Machine
}

// Start starts a member. Errors: as replica.New; Invalid.
func Start(c Config) (*Member, error) {
	const op = "member.Start"
	m := &Member{
		config: c, began: time.Now(),
		inbox: inbox{
			requests: make(chan request, maxRequests), messages: make(chan arrival, maxMessages),
			events:    make(chan func(*replica.Replica) error, maxEvents),
			barriers:  readIndexBatcher{wake: make(chan struct{}, 1)},
			piggyback: piggybackQueue{wake: make(chan struct{}, 1)},
		},
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	m.tick = c.Replica.Tick
	if m.tick <= 0 {
		m.tick = 50 * time.Millisecond
	}
	applied := c.Replica.Applied
	c.Replica.Applied = func(a replica.Applied) {
		m.claims.applied(a.Effects)
		m.watchers.applied(a.Effects)
		if applied != nil {
			applied(a)
		}
	}
	r, err := replica.New(c.Replica)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	m.replica, m.header = r, r.Header()
	m.Checkpoints.mark = func() { m.post(func(r *replica.Replica) error { replica.Mark(r); return nil }) }
	m.publish(r.Status())
	m.revision.Store(int64(m.header.Revision))
	m.watchers.replaced(m.header.Revision)
	l := &loop{Member: m, waiting: make(map[uint64]taker)}
	m.workers.Go(l.run)
	m.workers.Go(m.watch)
	return m, nil
}

// Revision returns the present revision of the state here.
func (m *Member) Revision() coord.Revision { return coord.Revision(m.revision.Load()) }

// Close hands the leadership to another voter if possible, within an election timeout and ctx. Then it stops
// the member and waits for its goroutines. Waiting calls end with Unavailable. The storage stays open.
func (m *Member) Close(ctx context.Context) error {
	m.handOver(ctx)
	m.closing.Do(func() { close(m.stop) })
	m.workers.Wait()
	if p := m.failed.Load(); p != nil {
		return fault.Wrap("member.Close", *p)
	}
	return nil
}

func (m *Member) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.config.Replica.ElectionTimeout())
	defer cancel()
	s := m.Status()
	var best replica.MemberStatus
	for _, other := range s.Members {
		if other.ID != s.Header.Member && other.Voter && other.Active && other.Match >= best.Match {
			best = other
		}
	}
	if s.Leads && best.ID != 0 {
		if err := m.Transfer(ctx, best.ID); err != nil {
			m.config.Replica.Logger.Info("handing over the leadership failed", "error", err)
		}
	}
}

// fail ends the member for good.
func (m *Member) fail(err error) {
	if m.failed.CompareAndSwap(nil, &err) {
		m.config.Replica.Logger.Error("the member cannot go on", "error", err)
		m.config.Fatal(err)
	}
}

// watch detects a stalled loop. It counts its own steps instead of time, because a suspended process is not a
// dead disk.
func (m *Member) watch() {
	const steps = 20
	ticker := time.NewTicker(stall / steps)
	defer ticker.Stop()
	last, still := m.turns.Load(), 0
	for {
		select {
		case <-m.done:
			return
		case <-ticker.C:
		}
		if now := m.turns.Load(); now != last {
			last, still = now, 0
		} else if still++; still == steps {
			m.fail(fault.New("member", fault.Unavailable, "no progress for %s: the disk does not answer", stall))
			return
		}
	}
}

// ended is the error of calls to a stopped member.
func (m *Member) ended() error {
	return fault.New("member", fault.Unavailable, "the member has stopped")
}

func (m *Member) publish(s replica.Status) {
	old := m.status.Swap(&s)
	if old == nil {
		return
	}
	if old.Leader != s.Leader || old.Promoted != s.Promoted || old.Leads != s.Leads || old.Header.Term != s.Header.Term ||
		old.Joint != s.Joint || !sameMembers(old.Members, s.Members) {
		m.change.Wake()
	}
}

func sameMembers(a, b []replica.MemberStatus) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Member != b[i].Member || a[i].Voter != b[i].Voter {
			return false
		}
	}
	return true
}
