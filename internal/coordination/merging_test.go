package coordination_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/platform/condition"
)

// twoGroups starts two groups that do not know each other: of the first n peers, and of the others.
func twoGroups(t *testing.T, n, others int) *testCluster {
	w := newTestCluster(t, n+others)
	for i, p := range w.peers {
		founder := 0
		if i >= n {
			founder = n
		}
		p.policy = joiner()
		if i == founder {
			p.policy = first()
		} else {
			w.link(i, founder)
		}
		w.start(i, unlisted())
	}
	w.await("all voters", func() bool {
		for i, p := range w.peers {
			wanted := min(n, 3)
			if i >= n {
				wanted = min(others, 3)
			}
			if s, err := p.Group(t.Context()); err != nil || s.Leader == "" || len(s.Voters) != wanted-(wanted+1)%2 {
				return false
			}
		}
		return true
	})
	require.Len(t, w.groups(), 2)
	return w
}

func (w *testCluster) link(a, b int) {
	_, err := w.peers[a].host.Network().DialPeer(network.WithDialPeerTimeout(w.t.Context(), 1e9), w.peers[b].host.ID())
	require.NoError(w.t, err)
}

// holds takes a lock under a caller's lease, and returns both with the token.
func (p *node) holds(t *testing.T, lock string) (coord.LeaseID, coord.Token) {
	t.Helper()
	owner := "~" + p.id()
	id := lease(t, p, owner, time.Minute)
	r, _, err := ops.Of(p).Acquire(t.Context(), ops.Command{Owner: owner, Op: &ops.Lock{Name: lock, Lease: id, Wait: true}}, time.Second)
	require.NoError(t, err)
	require.True(t, r.Lock.Granted)
	return id, r.Lock.Token
}

func (p *node) troubled(by condition.Name) bool {
	return slices.Contains(p.conditions.ActiveNames(), string(by))
}

// message returns the sentence of a condition.
func (p *node) message(of condition.Name) string {
	for _, c := range p.conditions.Active() {
		if c.Name == of {
			return c.String()
		}
	}
	return ""
}

// oneGroup waits until all running peers use one group, and nobody complains.
func (w *testCluster) oneGroup(id string) {
	w.t.Helper()
	defer func() {
		if w.t.Failed() {
			for i, p := range w.peers {
				if p.Seat != nil {
					s, err := p.Group(context.Background())
					w.t.Log(i, p.ID(), s.Leader, s.Phase, s.Missing, err, p.conditions.Active())
				}
			}
		}
	}()
	w.await("one group", func() bool {
		for _, p := range w.peers {
			if p.Seat == nil {
				continue
			}
			if s, err := p.Group(w.t.Context()); err != nil || p.ID() != id || s.Leader == "" || p.troubled(condition.OtherGroup) {
				return false
			}
		}
		return true
	})
}

// revoke ends a lease of holds.
func (p *node) revoke(t *testing.T, id coord.LeaseID) {
	t.Helper()
	_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Owner: "~" + p.id(), Op: &ops.LeaseRevoke{ID: id}})
	require.NoError(t, err)
}

// TestGroupWithoutDataGivesItselfUp: a group that holds no data of applications ends by itself, once the other one gives no token
// that is below one of its own. The other one keeps its locks, and watches of the former group begin anew.
func TestGroupWithoutDataGivesItselfUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 3, 1)
		stays, goes := w.peers[0], w.peers[3]
		before := coord.Token(0)
		for range 40 { // its tokens become larger, and it holds nothing at the end
			var id coord.LeaseID
			id, before = goes.holds(t, "a")
			goes.revoke(t, id)
		}
		kept, held := stays.holds(t, "kept")
		require.Less(t, held, before)
		group := stays.ID()
		w.link(3, 0)
		w.await("both say so", func() bool { return stays.troubled(condition.OtherGroup) && goes.troubled(condition.OtherGroup) })
		time.Sleep(30 * time.Second)
		require.Len(t, w.groups(), 2, "the other group would give lower tokens")

		watched := make(chan error, 1)
		began := make(chan struct{})
		go func() {
			first := true
			watched <- ops.Of(goes).Events(t.Context(), coord.Watch{Span: coord.Under("a")}, func(coord.Batch, coord.Header) error {
				if first {
					close(began)
				}
				first = false
				return nil
			})
		}()
		<-began
		for held <= before {
			var id coord.LeaseID
			id, held = stays.holds(t, "b")
			stays.revoke(t, id)
		}
		w.oneGroup(group)
		var compacted *coord.Compacted
		require.ErrorAs(t, <-watched, &compacted)
		require.ErrorAs(t, ops.Of(goes).Events(t.Context(), coord.Watch{From: 3}, nil), &compacted, "a cursor of the former group")
		_, after := goes.holds(t, "a")
		require.Greater(t, after, before)
		renewed, _, err := ops.Of(goes).KeepAlive(t.Context(), "~"+stays.id(), []coord.LeaseID{kept})
		require.NoError(t, err)
		require.Positive(t, renewed[0].TTL)
		w.await("it is a member of the other group", func() bool {
			s, err := stays.Group(t.Context())
			return err == nil && among(append(s.Learners, s.Voters...), goes)
		})
	})
}

// TestEmptyGroupsBecomeOne: neighbours that founded apart, with equal revisions, need no operator.
func TestEmptyGroupsBecomeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 1)
		w.link(1, 0)
		began := time.Now()
		w.await("one group", func() bool { return len(w.groups()) == 1 })
		require.Less(t, time.Since(began), 15*time.Second)
		w.oneGroup(w.groups()[0])
	})
}

// TestOperatorEmptiesGroup: two groups with data stay, and both say which one to empty, until an operator does. Crashes of its
// peers in between change nothing.
func TestOperatorEmptiesGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 3)
		stays, goes := w.peers[0], w.peers[2]
		held, lost := goes.holds(t, "a")
		kept := coord.Token(0)
		for range 20 {
			var id coord.LeaseID
			id, kept = stays.holds(t, "a")
			stays.revoke(t, id)
		}
		stays.holds(t, "b")
		require.Greater(t, kept, lost)
		w.link(1, 0)
		w.await("both say what to do", func() bool { // the first look may meet a peer that lags behind its group
			return strings.Contains(stays.message(condition.OtherGroup), "copy the keys of the other one to this peer's group") &&
				strings.Contains(w.peers[1].message(condition.OtherGroup), "copy the keys of this peer's group to the other one")
		})
		time.Sleep(30 * time.Second)
		require.Len(t, w.groups(), 2)

		group := stays.ID()
		late := 3
		if s, err := w.peers[1].Group(t.Context()); err != nil || s.Leader == w.peers[late].id() {
			late = 2
		}
		goes.revoke(t, held)
		w.peers[late].stop(t) // it may never apply the Dissolve
		for _, i := range []int{1, 5 - late} {
			w.peers[i].stop(t)
			w.start(i, unlisted())
			w.link(i, 0)
		}
		time.Sleep(time.Minute) // two restarted members elect first
		w.oneGroup(group)
		_, next := w.peers[1].holds(t, "b2")
		require.Greater(t, next, max(kept, lost))
		w.start(late, unlisted())
		w.link(late, 0)
		w.oneGroup(group)
	})
}

// TestEmptyGroupAboveTheOther: an empty group whose revision is above the other one's says what lets it end.
func TestEmptyGroupAboveTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 1)
		stays, goes := w.peers[0], w.peers[1]
		before := coord.Token(0)
		for range 20 {
			var id coord.LeaseID
			id, before = goes.holds(t, "a")
			goes.revoke(t, id)
		}
		_, held := stays.holds(t, "a")
		w.link(0, 1)
		w.await("both say so", func() bool {
			return strings.Contains(stays.message(condition.OtherGroup), "the other one is empty, and gives itself up once the revision of this peer's group") &&
				strings.Contains(goes.message(condition.OtherGroup), "this peer's group is empty, and gives itself up once the revision of the other one")
		})
		for held <= before+2 { // above its last revision, which gave no token
			_, held = stays.holds(t, "b"+strconv.Itoa(int(held)))
		}
		w.oneGroup(stays.ID())
	})
}

// TestMemberWithoutTheEndLeaves: a member that missed the end of its group follows the others.
func TestMemberWithoutTheEndLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := twoGroups(t, 1, 3)
		w.peers[0].holds(t, "a")
		for range 40 {
			id, _ := w.peers[0].holds(t, "b")
			w.peers[0].revoke(t, id)
		}
		w.peers[3].stop(t)
		w.link(1, 0)
		w.oneGroup(w.peers[0].ID())
		w.start(3, unlisted())
		w.link(3, 0)
		w.oneGroup(w.peers[0].ID())
	})
}
