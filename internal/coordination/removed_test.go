package coordination_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestRemovedWhileAway: a learner or voter is cut off until its replacement. It returns
// without notice, possibly with a lost leader. It still serves its clients, with fresh reads.
func TestRemovedWhileAway(t *testing.T) {
	for name, pick := range map[string]func(coord.GroupState) string{
		"learner": func(s coord.GroupState) string { return s.Learners[0].Peer },
		"voter": func(s coord.GroupState) string {
			for _, v := range s.Voters {
				if v.Peer != s.Leader {
					return v.Peer
				}
			}
			return ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startCluster(t, 5, 5)
				w.await("three voters and a learner", func() bool { s := w.state(); return len(s.Voters) == 3 && len(s.Learners) == 1 })
				id := pick(w.state())
				away := w.named(id)
				away.cut.Store(true)
				others := w.without(away)
				others.await("another has its place", func() bool {
					s := others.state()
					return len(s.Voters) == 3 && len(s.Learners) == 1 && !has(s, id)
				})
				old := others.leader()
				others.peers[old].stop(t)
				others.await("another leader", func() bool { return others.leader() >= 0 })
				away.cut.Store(false)

				began := time.Now()
				r, _, err := ops.Of(away).Do(t.Context(), ops.Command{Owner: id, Op: &ops.Txn{
					Then: []ops.Step{{Put: &ops.Put{Key: "k", Value: []byte("v")}}},
				}})
				for err != nil && time.Since(began) < 20*time.Second {
					r, _, err = ops.Of(away).Do(t.Context(), ops.Command{Owner: id, Op: &ops.Txn{
						Then: []ops.Step{{Put: &ops.Put{Key: "k", Value: []byte("v")}}},
					}})
				}
				require.NoError(t, err)
				w.await("a read at the peer itself has it", func() bool {
					page, _, err := ops.Of(away).Range(t.Context(), ops.Query{Span: coord.Exactly("k")}, ops.Local)
					return err == nil && len(page.Keys) == 1 && page.Keys[0].ModRevision >= r.Revision
				})
				w.await("its health knows the leader that serves it", func() bool {
					s := away.Standing()
					return s.Leader != "" && s.Missing == ""
				})
				require.Less(t, time.Since(began), 40*time.Second)
			})
		})
	}
}

// TestHealthOfReplaced: a voter that was replaced while it was down, and gets no place again, is a client whose health
// knows the leader.
func TestHealthOfReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 7)
		w.connect()
		for i := range w.peers {
			w.start(i, unlisted())
		}
		w.await("three voters and a learner", func() bool { s := w.state(); return len(s.Voters) == 3 && len(s.Learners) == 1 })
		s := w.state()
		id := s.Voters[0].Peer
		if id == s.Leader {
			id = s.Voters[1].Peer
		}
		away := slices.IndexFunc(w.peers, func(p *node) bool { return p.id() == id })
		others := w.without(w.peers[away])
		w.peers[away].stop(t)
		others.await("another has its place", func() bool {
			s := others.state()
			return len(s.Voters) == 3 && len(s.Learners) == 1 && !has(s, id)
		})
		w.start(away, unlisted())
		lacks := 0 // seconds
		for range 100 {
			time.Sleep(time.Second) // virtual
			s := w.peers[away].Standing()
			if lacks++; s.Leader != "" && s.Missing == "" {
				lacks = 0
			}
			require.Less(t, lacks, 20, "%+v", s)
		}
	})
}

// TestReplacedWhileAway: a voter that was replaced and removed while it was cut off comes back. It learns of its removal. When
// the majority of the others is lost it does not go on alone.
func TestReplacedWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 4)
		w.await("three voters and a learner", func() bool { s := w.state(); return len(s.Voters) == 3 && len(s.Learners) == 1 })
		s := w.state()
		id := s.Voters[0].Peer
		if id == s.Leader {
			id = s.Voters[1].Peer
		}
		away := w.named(id)
		away.cut.Store(true)
		others := w.without(away)
		others.await("another has its place", func() bool { return len(others.state().Voters) == 3 && !has(others.state(), id) })
		time.Sleep(10 * time.Second) // the change has two steps
		others.order(0, coord.MemberChange{Action: coord.RemoveMember, Peer: id, Force: true})
		away.cut.Store(false)
		w.await("it knows", func() bool { return away.Standing().Phase == "removed" })

		lead := others.leader()
		others.peers[lead].stop(t)
		others.peers[(lead+1)%3].stop(t)
		time.Sleep(2 * time.Minute)
		require.NotContains(t, away.Standing().Missing, "of the voters "+id)
		_, err := away.ChangeMembers(t.Context(), away.alone())
		require.ErrorIs(t, err, fault.Conflict)
		require.ErrorContains(t, err, "was removed from the group")
	})
}

func has(s coord.GroupState, id string) bool {
	for _, m := range append(s.Voters, s.Learners...) {
		if m.Peer == id {
			return true
		}
	}
	return false
}

func (w *testCluster) named(id string) *node {
	for _, p := range w.peers {
		if p.id() == id {
			return p
		}
	}
	return nil
}

// without returns the cluster without one peer.
func (w *testCluster) without(one *node) *testCluster {
	rest := *w
	rest.peers = nil
	for _, p := range w.peers {
		if p != one {
			rest.peers = append(rest.peers, p)
		}
	}
	return &rest
}
