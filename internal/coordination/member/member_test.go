package member_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// three runs a test on a group of three, in virtual time.
func three(t *testing.T, adjust func(*member.Config), run func(t *testing.T, n *network)) {
	synctest.Test(t, func(t *testing.T) {
		n := newGroup(t, options{voters: 3, adjust: adjust})
		defer n.close(t)
		run(t, n)
	})
}

func TestServes(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		ctx := t.Context()
		l := n.leader(t, nil)
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				_, _, err := l.Propose(ctx, coordtest.Command("", put(fmt.Sprint("key", i), "v")))
				assert.NoError(t, err)
			})
		}
		all.Wait()
		for _, e := range n.ends {
			h, err := e.Barrier(ctx)
			require.NoError(t, err)
			require.GreaterOrEqual(t, h.Revision, coord.Revision(50))
			require.Equal(t, e.id, h.Member)
			e.View(func(m *machine.Machine) { require.Equal(t, 50, m.Len()) })
		}
		space, h := l.Keyspace()
		l.do(t, put("another", "v"))
		require.Equal(t, 50, space.Len())
		require.Equal(t, coord.Revision(51), h.Revision)

		lease := l.do(t, &apiv1.LeaseGrantRequest{TtlMs: 10_000}).Lease
		time.Sleep(3 * time.Second)
		left, ok := l.Remaining(lease)
		require.True(t, ok)
		require.InDelta(t, 7, left.Seconds(), 0.5)
		renewals, _, err := l.KeepAlive(ctx, "owner", []coord.LeaseID{lease})
		require.NoError(t, err)
		require.Equal(t, []machine.Renewal{{ID: lease, TTL: 10_000}}, renewals)
		left, _ = l.Remaining(lease)
		require.InDelta(t, 10, left.Seconds(), 0.5)

		f := n.followers(l)[0]
		_, ok = f.Remaining(lease)
		require.False(t, ok)
		_, _, err = f.KeepAlive(ctx, "owner", []coord.LeaseID{lease})
		require.ErrorIs(t, err, fault.Unavailable)
		_, _, err = f.Propose(ctx, coordtest.Command("", put("a", "b")))
		var not *replica.NotLeader
		require.ErrorAs(t, err, &not)
		require.Equal(t, l.id, not.Leader.ID)
		peer, ok := f.Peer(l.id)
		require.True(t, ok)
		require.Equal(t, not.Leader.Peer, peer)
		require.Len(t, f.Members(), 3)
		_, _, err = l.KeepAlive(ctx, "owner", make([]coord.LeaseID, coord.MaxKeepAlive+1))
		require.ErrorIs(t, err, fault.LimitReached)
	})
}

func TestSurvivesTheLossOfTheLeader(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		old := n.leader(t, nil)
		old.do(t, put("before", "v"))
		n.setCut(old, true)
		lost := make(chan error, 1)
		go func() {
			_, _, err := old.Propose(t.Context(), coordtest.Command("", put("lost", "v")))
			lost <- err
		}()
		began := time.Now()
		next := n.leader(t, old)
		require.Less(t, time.Since(began), 3*time.Second)
		next.do(t, put("after", "v"))
		var not *replica.NotLeader
		require.ErrorAs(t, <-lost, &not)
		require.True(t, not.Maybe)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := old.Barrier(short)
		require.ErrorIs(t, err, fault.Timeout, "it must not answer from what it has")

		n.setCut(old, false)
		_, err = old.Barrier(t.Context())
		require.NoError(t, err)
		old.View(func(m *machine.Machine) {
			_, there := m.Get("after")
			require.True(t, there)
			_, there = m.Get("lost")
			require.False(t, there)
		})
	})
}

func TestCatchesUpBySnapshot(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		l := n.leader(t, nil)
		slow := n.followers(l)[0]
		n.setCut(slow, true)
		for i := range 500 {
			l.do(t, put(fmt.Sprint("key", i%70), fmt.Sprint(i)))
		}
		time.Sleep(100 * time.Millisecond) // a status is as old as a tick
		require.Greater(t, l.Status().Snapshot, slow.Status().Applied)
		n.setCut(slow, false)
		h, err := slow.Barrier(t.Context())
		require.NoError(t, err)
		require.Equal(t, coord.Revision(501), h.Revision)
		require.Equal(t, coord.Revision(501), slow.Revision())
	})
}

func TestWaitsForGrants(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		ctx := t.Context()
		l := n.leader(t, nil)
		var leases []coord.LeaseID
		var tokens []coord.Token
		for range 4 {
			id := l.do(t, &apiv1.LeaseGrantRequest{TtlMs: 10_000}).Lease
			r := l.do(t, &apiv1.LockRequest{TimeoutMs: -1, Name: "lock", LeaseId: int64(id)})
			leases, tokens = append(leases, id), append(tokens, r.Lock.Token)
		}
		held, _, err := l.Granted(ctx, "lock", leases[0], tokens[0])
		require.NoError(t, err)
		require.True(t, held)
		outcome := make([]chan bool, 4)
		f := n.followers(l)[0]
		_, err = f.Barrier(ctx)
		require.NoError(t, err)
		for i := 1; i < 4; i++ {
			outcome[i] = make(chan bool, 2)
			for _, e := range []*end{l, f} {
				go func() {
					held, _, err := e.Granted(ctx, "lock", leases[i], tokens[i])
					assert.NoError(t, err)
					outcome[i] <- held
				}()
			}
		}
		synctest.Wait()
		l.do(t, &apiv1.LeaseRevokeRequest{Id: int64(leases[1])})
		require.False(t, <-outcome[1], "gone before it held")
		require.False(t, <-outcome[1])
		l.do(t, &apiv1.UnlockRequest{Name: "lock", LeaseId: int64(leases[0]), FencingToken: int64(tokens[0])})
		require.True(t, <-outcome[2])
		require.True(t, <-outcome[2])
		synctest.Wait()
		require.Empty(t, outcome[3])
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, _, err = l.Granted(short, "lock", leases[3], tokens[3])
		require.ErrorIs(t, err, fault.Timeout)
		time.Sleep(12 * time.Second)
		require.False(t, <-outcome[3], "its lease has ended")
	})
}

// Only an event of its span wakes a watch. After a timeout the watch knows that there was none.
func TestWakesWatchers(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		l := n.leader(t, nil)
		type woken struct {
			from coord.Revision
			err  error
		}
		spans := []coord.Span{coord.Exactly("key"), coord.Under("ke"), {From: "kex"}, coord.Exactly("kez")}
		const mine, late = 3, 101 // spans with the key; its revision
		var outcomes []chan woken
		for _, e := range n.ends {
			for _, span := range spans {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				outcome := make(chan woken, 1)
				outcomes = append(outcomes, outcome)
				go func() {
					from, err := e.Await(ctx, span, coord.FirstRevision+1)
					outcome <- woken{from, err}
				}()
			}
		}
		synctest.Wait()
		for i := range 99 {
			l.do(t, put("ka", fmt.Sprint(i)))
		}
		synctest.Wait()
		for _, o := range outcomes {
			require.Empty(t, o)
		}
		l.do(t, put("key", ""))
		for i, o := range outcomes {
			got := <-o
			if i%len(spans) < mine {
				require.Equal(t, woken{from: late}, got, "span %v", spans[i%len(spans)])
				continue
			}
			require.ErrorIs(t, got.err, fault.Timeout)
			require.EqualValues(t, late+1, got.from)
		}
		from, err := l.Await(t.Context(), coord.Exactly("key"), late)
		require.NoError(t, err, "there is news already")
		require.EqualValues(t, late, from)
	})
}

// A clean stop hands over the leadership without an election timeout.
func TestCloseHandsOver(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		l := n.leader(t, nil)
		l.do(t, put("a", "b"))
		others := n.followers(l)
		changed := others[0].Changed()
		began := time.Now()
		l.halt(t)
		<-changed
		next := n.leader(t, l)
		require.Less(t, time.Since(began), 200*time.Millisecond)
		next.do(t, put("c", "d"))
		_, _, err := l.Propose(t.Context(), coordtest.Command("", put("e", "f")))
		require.ErrorIs(t, err, fault.Unavailable)
		_, err = l.Barrier(t.Context())
		require.ErrorIs(t, err, fault.Unavailable)
	})
}

func TestChangesMembers(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		ctx := t.Context()
		l := n.leader(t, nil)
		for i := range 150 {
			l.do(t, put(fmt.Sprint("key", i), "v"))
		}
		fresh := n.add(t, vfs.NewMem(), "group")
		require.NoError(t, fresh.store.Bind(groupID))
		fresh.start(t, nil)
		require.NoError(t, l.Change(ctx, replica.Change{Learners: []replica.Member{{ID: fresh.id, Peer: "fresh"}}}))
		_, err := fresh.Barrier(ctx)
		require.NoError(t, err)
		fresh.View(func(m *machine.Machine) { require.Equal(t, 150, m.Len()) })
		others := n.followers(l)
		out := others[0]
		if out == fresh {
			out = others[1]
		}
		require.NoError(t, l.Change(ctx, replica.Change{Voters: []replica.Member{{ID: fresh.id}}, Remove: []uint64{out.id}}))
		require.NoError(t, l.Transfer(ctx, fresh.id))
		fresh.do(t, put("last", "v"))
		require.ErrorIs(t, fresh.Change(ctx, replica.Change{Remove: []uint64{out.id}}), fault.NotFound)
	})
}

// A disk error ends the member and its waiting calls, once.
func TestDiskErrorIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		broken := false
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if broken && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo) {
				return errorfs.ErrInjected
			}
			return nil
		}))
		n := newGroup(t, options{voters: 1, folder: func(int) (vfs.FS, string) { return fs, "group" }})
		l := n.leader(t, nil)
		l.do(t, put("a", "b"))
		mu.Lock()
		broken = true
		mu.Unlock()
		_, _, err := l.Propose(t.Context(), coordtest.Command("", put("c", "d")))
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorIs(t, <-l.fatal, fault.Internal)
		require.ErrorIs(t, l.Close(t.Context()), fault.Internal)
		require.Empty(t, l.fatal)
		l.end()
	})
}

// A stalled disk does too.
func TestStallIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{}, 1)
		stalls := make(chan struct{})
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			select {
			case <-stalls:
				if op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo {
					<-gate
				}
			default:
			}
			return nil
		}))
		n := newGroup(t, options{voters: 1, folder: func(int) (vfs.FS, string) { return fs, "group" }})
		l := n.leader(t, nil)
		l.do(t, put("a", "b"))
		close(stalls)
		began := time.Now()
		go func() { _, _, _ = l.Propose(t.Context(), coordtest.Command("", put("c", "d"))) }()
		require.ErrorIs(t, <-l.fatal, fault.Unavailable)
		require.InDelta(t, 30, time.Since(began).Seconds(), 3)
		close(gate)
		require.Error(t, l.Close(t.Context()))
		l.end()
	})
}

// An entry that cannot be applied must not be skipped.
func TestPanicIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newGroup(t, options{voters: 1, adjust: func(c *member.Config) {
			c.Replica.Applied = func(a replica.Applied) {
				if a.Result.Revision == 3 {
					panic("planted")
				}
			}
		}})
		l := n.leader(t, nil)
		l.do(t, put("a", "b"))
		_, _, err := l.Propose(t.Context(), coordtest.Command("", put("c", "d")))
		require.ErrorIs(t, err, fault.Unavailable)
		require.ErrorContains(t, <-l.fatal, "planted")
		require.Error(t, l.Close(t.Context()))
		l.end()
	})
}

func TestRefusesConfigs(t *testing.T) {
	_, err := member.Start(member.Config{Transport: &end{}, Fatal: func(error) {}})
	require.ErrorIs(t, err, fault.Invalid, "no storage")
}
