package coordination_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// TestContract runs the contract's suite at the leader, at a follower, and at a client.
func TestContract(t *testing.T) {
	for name, place := range map[string]struct {
		peers, members int
		few            int // members among two peers for large values, which cost megabytes at each
		at             func(*testCluster) *node
	}{
		"leader":   {3, 3, 1, func(w *testCluster) *node { return w.peers[w.leader()] }},
		"follower": {3, 3, 2, func(w *testCluster) *node { return w.peers[(w.leader()+1)%len(w.peers)] }},
		"client":   {2, 1, 1, func(w *testCluster) *node { return w.peers[1] }}, // it sees one leader, however many follow
	} {
		t.Run(name, func(t *testing.T) {
			for test := range coordtest.Cases(nil) {
				t.Run(test, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						coordtest.Cases(func(testing.TB) coordtest.API {
							peers, members := place.peers, place.members
							if strings.Contains(test, "large") {
								peers, members = 2, place.few
							}
							w := startCluster(t, peers, members)
							return contract(w, place.at(w))
						})[test](t)
					})
				})
			}
		})
	}
}

// contract returns the plane of Alice's peer. Bob is another one.
func contract(w *testCluster, alice *node) coordtest.API {
	bob := w.peers[0]
	if bob == alice {
		bob = w.peers[1]
	}
	return coordtest.API{
		Alice: coordtest.Owner{Name: alice.id(), Ops: ops.Of(as{alice.Seat, alice.id()})},
		Bob:   coordtest.Owner{Name: bob.id(), Ops: ops.Of(as{bob.Seat, bob.id()})},
		Ops:   ops.Of(alice.Seat), Admin: alice.Seat,
		Internal: func(ctx context.Context, op ops.Op) error {
			_, _, err := ops.Of(w.peers[w.leader()].Member()).Do(ctx, ops.Command{Op: op})
			return err
		},
		Pass: time.Sleep, Directory: true,
	}
}

// as sets the owner, like a front end.
type as struct {
	coord.Service
	owner string
}

func (a as) Execute(ctx context.Context, cmd *coordv1.Command) (*coordv1.Result, error) {
	switch cmd.GetRequest().(type) {
	case *coordv1.Command_Configure, *coordv1.Command_Compact:
	default:
		cmd.Owner = a.owner
	}
	return a.Service.Execute(ctx, cmd)
}

func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 1, 1)
		id := lease(t, w.peers[0], w.peers[0].id(), 10*time.Second)
		r, _, err := ops.Of(w.peers[0]).Do(t.Context(), ops.Command{Owner: w.peers[0].id(), Op: &ops.Lock{Name: "n", Lease: id}})
		require.NoError(t, err)
		require.True(t, r.Lock.Granted)
	})
}

// TestLeaderLost: a waiter for a lock and a watcher at a client notice only a delay when the leader stops.
func TestLeaderLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		client := w.peers[3]
		owner := client.id()
		holder, waiter := lease(t, client, owner, time.Minute), lease(t, client, owner, time.Minute)
		first, _, err := ops.Of(client).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.Lock{Name: "n", Lease: holder}})
		require.NoError(t, err)
		type outcome struct {
			ops.Result
			err error
		}
		got := make(chan outcome, 1)
		go func() {
			r, _, err := ops.Of(client).Acquire(t.Context(), ops.Command{Owner: owner, Op: &ops.Lock{Name: "n", Lease: waiter, Wait: true}}, coord.NoLimit)
			got <- outcome{r, err}
		}()
		time.Sleep(time.Second)

		old := w.leader()
		w.peers[old].stop(t)
		w.await("another leader", func() bool { now := w.leader(); return now >= 0 && now != old })
		_, _, err = ops.Of(client).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.Unlock{Name: "n", Lease: holder, Token: first.Lock.Token}})
		require.NoError(t, err)
		second := <-got
		require.NoError(t, second.err)
		require.True(t, second.Lock.Granted)
		require.Greater(t, second.Lock.Token, first.Lock.Token)
	})
}

// TestLeaderCutOff: a cut-off leader neither answers nor refuses. A client is served as soon as another one
// leads.
func TestLeaderCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		client := w.peers[3]
		id := lease(t, client, client.id(), time.Minute)
		old := w.peers[w.leader()]
		old.cut.Store(true)
		began := time.Now()
		r, _, err := ops.Of(client).Do(t.Context(), ops.Command{Owner: client.id(), Op: &ops.Lock{Name: "n", Lease: id}})
		require.NoError(t, err)
		require.True(t, r.Lock.Granted)
		require.Less(t, time.Since(began), 5*time.Second)
	})
}

// TestClaimWithdrawn: a caller that stops waiting for a lock without reaching the leader leaves its queue all
// the same.
func TestClaimWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		client := w.peers[3]
		holder, waiter := lease(t, client, client.id(), time.Hour), lease(t, client, client.id(), time.Hour)
		_, _, err := ops.Of(client).Do(t.Context(), ops.Command{Owner: client.id(), Op: &ops.Lock{Name: "n", Lease: holder}})
		require.NoError(t, err)
		leader := w.peers[w.leader()]
		leader.door.deaf.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, _, err := ops.Of(client).Acquire(ctx, ops.Command{Owner: client.id(), Op: &ops.Lock{Name: "n", Lease: waiter, Wait: true}}, coord.NoLimit)
			gone <- err
		}()
		waiting := func() int {
			locks, _, err := ops.Of(client).Locks(t.Context(), ops.LockQuery{Name: "n"})
			require.NoError(t, err)
			return len(locks[0].Waiting)
		}
		w.await("the claim", func() bool { return waiting() == 1 })
		leader.door.deaf.Store(false)
		cancel()
		require.ErrorIs(t, <-gone, fault.Canceled)
		for range 5 {
			lease(t, client, client.id(), time.Minute)
		}
		w.await("the claim is given back", func() bool { return waiting() == 0 })
	})
}

// TestNoQuorum: without a majority every call ends by itself within 5 s, with the reason.
func TestNoQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		lead := w.leader()
		w.peers[lead].stop(t)
		w.peers[(lead+1)%3].stop(t)
		for _, i := range []int{(lead + 2) % 3, 3} {
			p := w.peers[i]
			fails := func(err error, began time.Time) {
				t.Helper()
				require.ErrorIs(t, err, fault.Unavailable)
				require.ErrorContains(t, err, "no_quorum")
				require.LessOrEqual(t, time.Since(began), 5*time.Second)
			}
			began := time.Now()
			_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Owner: p.id(), Op: &ops.LeaseGrant{TTL: 10_000}})
			fails(err, began)
			w.await("the condition", func() bool { return slices.Equal(p.conditions.ActiveNames(), []string{"no_quorum"}) })
			began = time.Now()
			_, _, err = ops.Of(p).Locks(t.Context(), ops.LockQuery{})
			fails(err, began)
			began = time.Now()
			_, _, err = ops.Of(p).KeepAlive(t.Context(), p.id(), []coord.LeaseID{1})
			fails(err, began)
			began = time.Now()
			_, _, err = ops.Of(p).Range(t.Context(), ops.Query{}, ops.Linearizable)
			fails(err, began)
		}
	})
}

// TestElecting: a founder waits for the leader, until there is one; a peer that only uses the group does not.
func TestElecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 4)
		w.connect()
		w.start(0, w.listed(3))
		w.start(3, w.listed(3))
		time.Sleep(10 * time.Second)
		require.Equal(t, []bool{true, false}, []bool{w.peers[0].Electing(), w.peers[3].Electing()}, "one of three founders")
		w.start(1, w.listed(3))
		w.start(2, w.listed(3))
		w.await("a leader", func() bool { return w.peers[0].Standing().Leader != "" })
		require.False(t, w.peers[0].Electing())
		w.peers[1].stop(t)
		w.peers[2].stop(t)
		w.await("the loss of the leader", func() bool { return w.peers[0].Standing().Leader == "" })
		require.True(t, w.peers[0].Electing())
	})
}

// TestTwoLoneGroupsAreTold: peers that each founded a group say so while they are connected.
func TestTwoLoneGroupsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2)
		a, b := w.peers[0], w.peers[1]
		w.start(0, w.listed(1))
		alone := w.listed(2)
		alone.Founders = alone.Founders[1:]
		w.start(1, alone)
		w.await("two groups", func() bool { return a.ID() != "" && b.ID() != "" })
		require.NotEqual(t, a.ID(), b.ID())
		require.NoError(t, a.host.Connect(t.Context(), peer.AddrInfo{ID: b.host.ID(), Addrs: b.host.Addrs()}))
		for _, p := range []*node{a, b} {
			w.await("the condition", func() bool { return slices.Contains(p.conditions.ActiveNames(), "other_group") })
		}
		b.stop(t)
		time.Sleep(2 * time.Minute) // virtual
		require.Empty(t, a.conditions.ActiveNames())
	})
}

// TestDeadVoterReplaced: of five eligible peers three vote and one learns. A voter silent for long is
// replaced; after its return it is a candidate again.
func TestDeadVoterReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 5, 5)
		w.await("three voters and a learner", func() bool { return len(w.state().Voters) == 3 && len(w.state().Learners) == 1 })
		lead := w.leader()
		id := w.peers[lead].id()
		group := w.state().ID
		w.peers[lead].stop(t)
		w.await("another voter in its place", func() bool {
			s := w.state()
			for _, v := range s.Voters {
				if v.Peer == id {
					return false
				}
			}
			return len(s.Voters) == 3
		})
		w.start(lead, w.listed(5))
		w.await("it knows the group", func() bool {
			s, err := w.peers[lead].Group(t.Context())
			return err == nil && s.ID == group && s.Leader != ""
		})
	})
}

// state returns the group according to its leader.
func (w *testCluster) state() coord.GroupState {
	i := w.leader()
	if i < 0 {
		return coord.GroupState{}
	}
	s, err := w.peers[i].Group(w.t.Context())
	require.NoError(w.t, err)
	return s
}

// TestRestart: after a stop of all peers, their disks hold the same state.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 3, 3)
		owner := w.peers[0].id()
		id := lease(t, w.peers[0], owner, time.Hour)
		before, _, err := ops.Of(w.peers[0]).Do(t.Context(), ops.Command{Owner: owner, Op: &ops.Lock{Name: "n", Lease: id}})
		require.NoError(t, err)
		group := w.state().ID
		for _, p := range w.peers {
			p.stop(t)
		}
		for i := range w.peers {
			w.start(i, w.listed(3))
		}
		w.await("a leader", func() bool { return w.leader() >= 0 })
		require.Equal(t, group, w.state().ID)
		locks, _, err := ops.Of(w.peers[1]).Locks(t.Context(), ops.LockQuery{Name: "n"})
		require.NoError(t, err)
		require.Equal(t, before.Lock.Token, locks[0].Holding[0].Token)
	})
}

// TestWatchGoesOn: a watch at a client loses no event when its member stops.
func TestWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		client := w.peers[3]
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := make(chan coord.Revision, 100)
		ended := make(chan error, 1)
		go func() {
			ended <- ops.Of(client).Events(ctx, coord.Watch{Span: coord.Under("k/")}, func(b coord.Batch, _ coord.Header) error {
				for _, e := range b.Events {
					seen <- e.Revision
				}
				return nil
			})
		}()
		time.Sleep(time.Second)
		var want []coord.Revision
		for i := range 10 {
			if i == 5 {
				w.peers[w.leader()].stop(t)
			}
			r, _, err := ops.Of(client).Do(t.Context(), ops.Command{Owner: client.id(), Op: &ops.Txn{
				Then: []ops.Step{{Put: &ops.Put{Key: "k/x", Value: []byte{byte(i)}}}},
			}})
			require.NoError(t, err)
			want = append(want, r.Revision)
		}
		time.Sleep(15 * time.Second)
		cancel()
		require.ErrorIs(t, <-ended, fault.Canceled)
		close(seen)
		var got []coord.Revision
		for r := range seen {
			got = append(got, r)
		}
		require.Equal(t, want, got)
	})
}
