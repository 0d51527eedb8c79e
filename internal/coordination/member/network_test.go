package member_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

const groupID = "a group id of thirty-two bytes..."

// network carries messages between members of one process, in order, through bounded queues.
type network struct {
	mu    sync.Mutex // guards all below
	ends  map[uint64]*end
	count map[pb.MessageType]int // of messages that left
}

// sent counts the messages of some types that have left.
func (n *network) sent(types ...pb.MessageType) (all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, kind := range types {
		all += n.count[kind]
	}
	return all
}

// end is one member's side of the network.
type end struct {
	*member.Member
	net    *network
	id     uint64
	fs     vfs.FS
	store  *raftlog.Storage
	queue  chan *pb.Message
	stop   chan struct{}
	cut    bool // guarded by net.mu
	fatal  chan error
	served sync.WaitGroup
}

// options configures a group of a test.
type options struct {
	voters int
	adjust func(*member.Config)
	folder func(i int) (vfs.FS, string)
}

func newGroup(t testing.TB, o options) *network {
	n := &network{ends: make(map[uint64]*end), count: make(map[pb.MessageType]int)}
	var voters []replica.Member
	var ends []*end
	for i := range o.voters {
		fs, dir := vfs.FS(vfs.NewMem()), "group"
		if o.folder != nil {
			fs, dir = o.folder(i)
		}
		e := n.add(t, fs, dir)
		ends = append(ends, e)
		voters = append(voters, replica.Member{ID: e.id, Peer: fmt.Sprintf("peer-%x", e.id)})
	}
	for _, e := range ends {
		require.NoError(t, replica.Bootstrap(e.store, groupID, voters))
	}
	for _, e := range ends {
		e.start(t, o.adjust)
	}
	return n
}

func (n *network) add(t testing.TB, fs vfs.FS, dir string) *end {
	store, err := raftlog.Open(raftlog.Options{FS: fs, Dir: dir})
	require.NoError(t, err)
	e := &end{net: n, id: store.Member(), fs: fs, store: store, fatal: make(chan error, 1)}
	n.mu.Lock()
	n.ends[e.id] = e
	n.mu.Unlock()
	return e
}

func (e *end) start(t testing.TB, adjust func(*member.Config)) {
	c := member.Config{
		Replica:   replica.Config{Storage: e.store, SnapshotEntries: 100, Trail: 20, Logger: slog.New(slog.DiscardHandler)},
		Transport: e,
		Fatal:     func(err error) { e.fatal <- err },
	}
	if adjust != nil {
		adjust(&c)
	}
	m, err := member.Start(c)
	require.NoError(t, err)
	e.Member, e.queue, e.stop = m, make(chan *pb.Message, 4096), make(chan struct{})
	e.served.Go(e.serve)
}

// serve passes messages to the member.
func (e *end) serve() {
	for {
		select {
		case <-e.stop:
			return
		case m := <-e.queue:
			e.Receive(m)
		}
	}
}

// Send implements member.Transport.
func (e *end) Send(messages []*pb.Message) {
	for _, m := range messages {
		e.net.mu.Lock()
		e.net.count[m.GetType()]++
		to := e.net.ends[m.GetTo()]
		lost := to == nil || to.queue == nil || to.cut || e.cut
		e.net.mu.Unlock()
		switch {
		case m.GetType() == pb.MsgSnap:
			e.served.Go(func() { e.carry(m, to, lost) })
		case !lost:
			select {
			case to.queue <- m:
			default:
			}
		}
	}
}

// carry transfers a snapshot and its state from file to file.
func (e *end) carry(m *pb.Message, to *end, lost bool) {
	if lost {
		e.SnapshotSent(m.GetTo(), false)
		return
	}
	var state bytes.Buffer
	r, err := e.store.State(m.GetSnapshot())
	if err == nil {
		_, err = state.ReadFrom(r)
		_ = r.Close()
	}
	if err == nil {
		err = to.store.Write(m.GetSnapshot(), &state)
	}
	if err == nil {
		to.Receive(proto.Clone(m).(*pb.Message))
	}
	e.SnapshotSent(m.GetTo(), err == nil)
}

// Recheck implements member.Transport.
func (e *end) Recheck() {}

func (n *network) setCut(e *end, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e.cut = cut
}

// halt closes a member cleanly.
func (e *end) halt(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	require.NoError(t, e.Close(ctx))
	e.end()
}

func (e *end) end() {
	close(e.stop)
	e.served.Wait()
	_ = e.store.Close()
}

func (n *network) close(t testing.TB) {
	for _, e := range n.ends {
		n.setCut(e, true) // without a hand-over
	}
	for _, e := range n.ends {
		select {
		case <-e.stop:
		default:
			e.halt(t)
		}
	}
}

// leader waits for a serving member, except one.
func (n *network) leader(t testing.TB, not *end) *end {
	for range 2000 {
		for _, e := range n.ends {
			if e != not && e.Status().Promoted {
				return e
			}
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatal("no leader")
	return nil
}

func (n *network) followers(leader *end) []*end {
	var some []*end
	for _, e := range n.ends {
		if e != leader {
			some = append(some, e)
		}
	}
	return some
}

func put(key, value string) *apiv1.TxnRequest {
	return &apiv1.TxnRequest{Then: []*apiv1.TxnStep{coordtest.Put(key, value, 0)}}
}

func (e *end) do(t testing.TB, op proto.Message) ops.Result {
	cmd := coordtest.Command("owner", op)
	result, _, err := e.Propose(context.Background(), cmd)
	require.NoError(t, err)
	require.NoError(t, result.Err)
	return coordtest.Outcome(result)
}
