package etcdapi_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi"
	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3electionpb"
	"github.com/blackhole/blackhole/internal/frontend/etcdapi/v3lockpb"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// begin sends a request for a watch.
func (w watching) begin(r *pb.WatchCreateRequest) {
	w.t.Helper()
	require.NoError(w.t, w.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}))
}

// faulty is a plane whose watches fail with an error while it has one. It counts its calls.
type faulty struct {
	coord.Service
	with                            atomic.Pointer[error]
	commands, reads, local, watches atomic.Int64     // local are those reads that need no group
	after                           func(read int64) // of each read
}

// Execute implements coord.Service.
func (f *faulty) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	f.commands.Add(1)
	return f.Service.Execute(ctx, cmd)
}

// Read implements coord.Service.
func (f *faulty) Read(ctx context.Context, q *coordv1.Question) (*coordv1.Answer, error) {
	n := f.reads.Add(1)
	if q.GetRange().GetLocal() {
		f.local.Add(1)
	}
	a, err := f.Service.Read(ctx, q)
	if f.after != nil {
		f.after(n)
	}
	return a, err
}

// Watch implements coord.Service.
func (f *faulty) Watch(
	ctx context.Context, w *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error,
) error {
	f.watches.Add(1)
	if err := f.with.Load(); err != nil {
		return *err
	}
	return f.Service.Watch(ctx, w, send)
}

// leader tells who leads.
type leader struct {
	mu      sync.Mutex
	name    string
	changed chan struct{}
}

func (l *leader) set(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.name, l.changed = name, make(chan struct{})
}

func (l *leader) leading() (uint64, string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return 1, l.name, l.changed
}

// group is a front whose group loses its majority at the word of a test.
type group struct {
	*front
	leader leader
	*faulty
	t *testing.T
}

func newGroup(t *testing.T, bounds etcdapi.Config) *group {
	g := &group{leader: leader{name: "solo", changed: make(chan struct{})}, faulty: &faulty{}, t: t}
	l := bufconn.Listen(1 << 10)
	bounds.Service, bounds.Leading, bounds.NoLeader = g.faulty, g.leader.leading, 1500*time.Millisecond
	g.front = startWith(t, l, "passthrough:///peer", bounds, nil,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	return g
}

// lose takes the majority away, and waits until all calls have noticed.
func (g *group) lose(for_ time.Duration) {
	g.solo.Halt("no majority")
	g.leader.set("")
	synctest.Wait()
	g.solo.Advance(time.Minute) // to the next marks of watches
	time.Sleep(for_)
	synctest.Wait()
}

func (g *group) heal() {
	g.solo.Resume()
	g.leader.set("solo")
	time.Sleep(time.Second)
	synctest.Wait()
}

func (g *group) watch(ctx context.Context) watching {
	stream, err := g.front.Watch(ctx)
	require.NoError(g.t, err)
	return watching{stream, g.t}
}

// requireLeader is the context of a call of a client that requires a leader.
func requireLeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
}

// TestNoMajority: what waits goes on where it was when a majority is back.
func TestNoMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, etcdapi.Config{})
		w, late := g.watch(t.Context()), g.watch(t.Context())
		w.create(&pb.WatchCreateRequest{Key: []byte("a")})
		w.create(&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("c"), PrevKv: true})
		lease, err := g.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 3600})
		require.NoError(t, err)
		other, err := g.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 3600})
		require.NoError(t, err)
		first, err := g.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("jobs"), Lease: lease.GetID()})
		require.NoError(t, err)
		locked := make(chan error, 1)
		go func() {
			_, err := g.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("jobs"), Lease: other.GetID()})
			locked <- err
		}()
		leads, err := g.Campaign(t.Context(), &v3electionpb.CampaignRequest{Name: []byte("e"), Lease: lease.GetID(), Value: []byte("1")})
		require.NoError(t, err)
		observed, err := g.Observe(t.Context(), &v3electionpb.LeaderRequest{Name: []byte("e")})
		require.NoError(t, err)
		is, err := observed.Recv()
		require.NoError(t, err)
		require.Equal(t, "1", string(is.GetKv().GetValue()))
		alive, err := g.LeaseKeepAlive(t.Context())
		require.NoError(t, err)
		synctest.Wait()

		at := g.put(t, "s", "1")
		g.lose(time.Minute)
		began := time.Now()
		for _, revision := range []int64{0, at} {
			r, err := g.Range(t.Context(), all(func(r *pb.RangeRequest) { r.Serializable, r.Revision, r.Limit = true, revision, 1 }))
			require.NoError(t, err, "it needs no majority")
			require.Greater(t, r.GetCount(), int64(1))
		}
		require.Zero(t, time.Since(began))
		late.begin(&pb.WatchCreateRequest{Key: []byte("a")})
		require.NoError(t, alive.Send(&pb.LeaseKeepAliveRequest{ID: lease.GetID()}))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, locked)

		g.heal()
		require.True(t, late.next().GetCreated(), "a watch that began without a majority")
		kept, err := alive.Recv()
		require.NoError(t, err)
		require.EqualValues(t, 3600, kept.GetTTL())
		at = g.put(t, "a", "1")
		g.put(t, "b", "2")
		events := map[string]int64{}
		for range 2 {
			for _, e := range w.next().GetEvents() {
				events[string(e.GetKv().GetKey())] = e.GetKv().GetModRevision()
			}
		}
		require.Equal(t, map[string]int64{"a": at, "b": at + 1}, events)
		require.Equal(t, at, late.next().GetEvents()[0].GetKv().GetModRevision())
		_, err = g.Unlock(t.Context(), &v3lockpb.UnlockRequest{Key: first.GetKey()})
		require.NoError(t, err)
		require.NoError(t, <-locked)
		_, err = g.Proclaim(t.Context(), &v3electionpb.ProclaimRequest{Leader: leads.GetLeader(), Value: []byte("2")})
		require.NoError(t, err)
		is, err = observed.Recv()
		require.NoError(t, err)
		require.Equal(t, "2", string(is.GetKv().GetValue()), "the leader before is not told again")
	})
}

// TestRequireLeader: a call whose client requires a leader ends with etcd's error after three election times, and not
// before.
func TestRequireLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, etcdapi.Config{})
		lease, err := g.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 3600})
		require.NoError(t, err)
		w := g.watch(requireLeader(t.Context()))
		w.create(&pb.WatchCreateRequest{Key: []byte("a")})
		alive, err := g.LeaseKeepAlive(requireLeader(t.Context()))
		require.NoError(t, err)
		require.NoError(t, alive.Send(&pb.LeaseKeepAliveRequest{ID: lease.GetID()}))
		_, err = alive.Recv()
		require.NoError(t, err)

		g.lose(time.Second) // an election takes no longer
		g.heal()
		g.put(t, "a", "1")
		require.Len(t, w.next().GetEvents(), 1)

		g.lose(2 * time.Second)
		_, err = w.Recv()
		refusedAs(t, rpctypes.ErrGRPCNoLeader, err)
		_, err = alive.Recv()
		refusedAs(t, rpctypes.ErrGRPCNoLeader, err)
		for name, call := range map[string]func(context.Context) error{
			"put": func(ctx context.Context) error { _, err := g.Put(ctx, &pb.PutRequest{Key: []byte("a")}); return err },
			"get": func(ctx context.Context) error { _, err := g.Range(ctx, all()); return err },
			"grant": func(ctx context.Context) error {
				_, err := g.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 9})
				return err
			},
			"watch": func(ctx context.Context) error { _, err := g.watch(ctx).Recv(); return err },
		} {
			began := time.Now()
			refusedAs(t, rpctypes.ErrGRPCNoLeader, call(requireLeader(t.Context())))
			require.Zero(t, time.Since(began), name)
		}
		g.heal()
		_, err = g.Put(requireLeader(t.Context()), &pb.PutRequest{Key: []byte("a")})
		require.NoError(t, err)
	})
}

// TestEndsOfWatches: how each fault ends a watch that has caught up, and one that begins. A stream that ends as
// Unavailable is begun again by clients; one Canceled watch has ended for good.
func TestEndsOfWatches(t *testing.T) {
	for name, c := range map[string]struct {
		fault    error
		canceled string // the reason; "": the stream ends
	}{
		"time-out":           {fault: fault.New("", fault.Timeout, "too late")},
		"full pool of peers": {fault: fault.Exhausted("", "watches", false, "full")},
		"internal":           {fault: fault.New("", fault.Internal, "broken")},
		"of another network": {fault: fault.New("", fault.Forbidden, "no")},
		"compacted": {
			fault.As("", fault.NotFound, &coord.Compacted{Revision: 1 << 40}), rpctypes.ErrCompacted.Error(),
		},
		"impossible": {
			fault.Refused(fault.TooLarge, "from", "one revision is too large"), "etcdserver: request is too large",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGroup(t, etcdapi.Config{})
				old := g.watch(t.Context())
				old.create(&pb.WatchCreateRequest{Key: []byte("a")})
				old.create(&pb.WatchCreateRequest{Key: []byte("b")})
				synctest.Wait()
				g.with.Store(&c.fault)
				fresh := g.watch(t.Context())
				fresh.begin(&pb.WatchCreateRequest{Key: []byte("a")})
				old.askProgress() // begins the shared watch anew
				for _, w := range []watching{fresh, old} {
					if c.canceled == "" {
						_, err := w.Recv()
						require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
						require.NotEqual(t, rpctypes.ErrGRPCNoLeader, err)
						continue
					}
					last := w.next()
					if w == fresh {
						require.True(t, last.GetCreated())
						last = w.next()
					}
					require.True(t, last.GetCanceled())
					require.Contains(t, last.GetCancelReason(), c.canceled)
				}
			})
		})
	}
}

// TestManyWatches: one client has ten thousand watches on one stream, of other keys and ranges, and each gets its
// events. The bytes of watches have a share: a watch beyond it waits for room, and then its stream ends as one that
// clients begin again.
func TestManyWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 10_000
		answers := access.NewPool("answer_bytes", 32<<20, nil)
		g := newGroup(t, etcdapi.Config{Answers: answers})
		w := g.watch(t.Context())
		name := func(n int) string { return string([]byte{byte('a' + n/100), byte('a' + n%100)}) }
		for n := range many {
			created := w.create(&pb.WatchCreateRequest{Key: []byte(name(n))})
			require.True(t, created.GetCreated())
			require.EqualValues(t, n, created.GetWatchId())
			require.False(t, created.GetCanceled())
		}
		for _, n := range []int{0, many / 2, many - 1} {
			at := g.put(t, name(n), "x")
			got := w.next()
			require.EqualValues(t, n, got.GetWatchId())
			require.Equal(t, at, got.GetEvents()[0].GetKv().GetModRevision())
		}
		long := make([]byte, 4<<20)
		greedy := g.watch(t.Context())
		var err error
		taken := 0
		for ; err == nil; taken++ {
			greedy.begin(&pb.WatchCreateRequest{Key: long})
			var r *pb.WatchResponse
			if r, err = greedy.Recv(); err == nil {
				require.False(t, r.GetCanceled())
			}
		}
		require.Less(t, taken, 5)
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		g.put(t, name(7), "x")
		require.EqualValues(t, 7, w.next().GetWatchId(), "the others go on")
		require.NoError(t, w.CloseSend())
	})
}
