package trade

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/internal/trade/ledger"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// place is where the ledger of a test is.
type place struct {
	mu    sync.Mutex
	shelf shelf
	name  string
	err   error
}

func (p *place) now() (shelf, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shelf, p.name, p.err
}

func (p *place) set(s shelf, name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shelf, p.name, p.err = s, name, err
}

// newGranter starts a granter on a disk.
func newGranter(t *testing.T, fs vfs.FS, at *place, adapt ...func(*granter)) *granter {
	t.Helper()
	kept, err := openDisk(testStore(fs))
	require.NoError(t, err)
	start := time.Now()
	g := &granter{
		group: at.now, disk: kept, now: func() time.Duration { return time.Since(start) }, suspends: func() error { return nil },
		ended: func() {}, queue: make(chan *change, maxQueued),
	}
	g.current.Store(ledger.New())
	for _, f := range adapt {
		f(g)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { g.run(ctx) })
	t.Cleanup(func() {
		cancel()
		work.Wait()
		require.NoError(t, kept.close())
	})
	return g
}

func terms(total uint32) ledger.Terms {
	return ledger.Terms{Key: "/k/gpu", Offer: "gpu", Sequence: 1, Unit: "gpu", Total: total, PerOne: total, MaxTime: time.Hour}
}

func (g *granter) take(ctx context.Context, consumer, request string, units, total uint32) (*pb.Entry, error) {
	return g.do(ctx, true, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
		r := &api.ReserveRequest{Key: "/k/gpu", Units: units, TtlMs: 600_000, RequestId: request}
		return l.Reserve(ledger.Consumer{ID: consumer}, r, terms(total), now, time.Now())
	})
}

// TestTwins: two machines with the identity of one provider meet in its group. Together they grant the stock and no
// unit more.
func TestTwins(t *testing.T) {
	group := groupShelf{coordtest.New(coordtest.Config{}), "provider"}
	const total, buyers = 20, 40
	var twins [2]*granter
	for i := range twins {
		twins[i] = newGranter(t, vfs.NewMem(), &place{shelf: group, name: "group"})
	}
	var mu sync.Mutex
	tokens := map[uint64]bool{}
	refused := 0
	var all sync.WaitGroup
	for b := range buyers {
		all.Go(func() {
			for {
				e, err := twins[b%2].take(t.Context(), fmt.Sprint("buyer", b), "r", 1, total)
				if fault.KindOf(err) == fault.Unavailable { // the other one was faster, many times
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					require.ErrorContains(t, err, "0 of 20 are free")
					refused++
					return
				}
				require.False(t, tokens[e.Token], "two grants with one token")
				tokens[e.Token] = true
				return
			}
		})
	}
	all.Wait()
	require.Len(t, tokens, total)
	require.Equal(t, buyers-total, refused)
	value, _, err := group.read(t.Context())
	require.NoError(t, err)
	var state pb.Ledger
	require.NoError(t, proto.Unmarshal(value, &state))
	require.Len(t, state.Entries, total)
}

// TestMoves: a provider that joins a group takes its grants along. One that comes back from a group that it cannot
// read grants nothing until all that it may have granted there has ended.
func TestMoves(t *testing.T) {
	fs := vfs.NewMem()
	at := &place{}
	alone := newGranter(t, fs, at)
	first, err := alone.take(t.Context(), "a", "r", 3, 4)
	require.NoError(t, err)

	group := groupShelf{coordtest.New(coordtest.Config{}), "provider"}
	at.set(group, "group/1", nil)
	_, err = alone.take(t.Context(), "b", "r", 2, 4)
	require.ErrorContains(t, err, "1 of 4 are free", "the grants came along")
	second, err := alone.take(t.Context(), "b", "r2", 1, 4)
	require.NoError(t, err)
	require.Greater(t, second.Token, first.Token)

	at.set(nil, "", fault.New("", fault.Unavailable, "no majority"))
	_, err = alone.take(t.Context(), "c", "r", 1, 9)
	require.ErrorIs(t, err, fault.Unavailable, "nothing is granted from memory")

	forgetful := newGranter(t, copyOf(t, fs, alone), &place{}) // a new process, which is a member of no group
	_, err = forgetful.take(t.Context(), "c", "r", 1, 9)
	require.ErrorContains(t, err, "grants again in 11m0s")
}

// copyOf closes the database of a granter, and returns its files.
func copyOf(t *testing.T, fs vfs.FS, g *granter) vfs.FS {
	t.Helper()
	require.NoError(t, g.disk.close())
	return fs
}

// TestBatches: all changes that wait take one write, so a slow disk of the group does not bound the number of grants.
func TestBatches(t *testing.T) {
	slow := &slowShelf{groupShelf: groupShelf{coordtest.New(coordtest.Config{}), "provider"}, release: make(chan struct{}), begun: make(chan struct{}, 64)}
	g := newGranter(t, vfs.NewMem(), &place{shelf: slow, name: "group"})
	var all sync.WaitGroup
	ask := func(i int) {
		all.Go(func() {
			_, err := g.take(t.Context(), fmt.Sprint("c", i), "r", 1, 1000)
			require.NoError(t, err)
		})
	}
	ask(0)
	<-slow.begun
	for i := range 100 {
		ask(i + 1)
	}
	for len(g.queue) < 100 {
		<-time.After(time.Millisecond)
	}
	close(slow.release)
	all.Wait()
	require.Len(t, slow.begun, 1, "the second write took all")
}

// slowShelf waits before its writes.
type slowShelf struct {
	groupShelf
	release, begun chan struct{}
}

func (s *slowShelf) swap(ctx context.Context, revision int64, value []byte) (int64, error) {
	s.begun <- struct{}{}
	<-s.release
	return s.groupShelf.swap(ctx, revision, value)
}

func testStore(fs vfs.FS) store.Config {
	c := storeConfig(Config{Dir: "trade", Logger: slog.New(slog.DiscardHandler)}, "provider")
	c.FS = fs
	return c
}

// TestOutagesAreTold: what keeps a provider from granting is a condition until it ends, also the time in which it
// has lost sight of earlier grants.
func TestOutagesAreTold(t *testing.T) {
	set := condition.NewSet(slog.New(slog.DiscardHandler), time.Now)
	d := &Desk{Config: Config{Conditions: set}}
	at := &place{err: fault.New("", fault.Unavailable, "no leader")}
	g := newGranter(t, vfs.NewMem(), at, func(g *granter) { g.failed = d.tellOutage })
	_, err := g.take(t.Context(), "a", "r", 1, 4)
	require.ErrorIs(t, err, fault.Unavailable)
	require.Equal(t, []string{string(condition.NoGrants)}, set.ActiveNames())
	at.set(nil, "", nil)
	_, err = g.take(t.Context(), "a", "r", 1, 4)
	require.NoError(t, err)
	require.Empty(t, set.ActiveNames())
	d.tellOutage((&granter{blocked: time.Minute, now: func() time.Duration { return 0 }}).forgets())
	require.Equal(t, []string{string(condition.NoGrants)}, set.ActiveNames())
}
