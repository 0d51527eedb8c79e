package replica_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Followers whose leader has hung up elect another one before the silence of an election.
func TestGoneLeaderIsReplacedAtOnce(t *testing.T) {
	for _, voters := range []int{3, 5} {
		c := newCluster(t, voters, nil)
		old := c.leader()
		require.NoError(t, old.do(put("k", "v")).Err)
		before := c.now
		old.crash()
		for _, n := range c.followers(old) {
			n.Unreachable(old.store.Member(), true)
		}
		c.settle()
		next := c.leader()
		require.NotSame(t, old, next)
		require.Less(t, c.now-before, 250*time.Millisecond, "an election by silence takes at least 500 ms")
		require.NoError(t, next.do(put("k", "w")).Err)
		old.restart()
		c.agree()
	}
}

// With the first in the order dead as well, the next one stands.
func TestGoneLeaderAndSuccessor(t *testing.T) {
	c := newCluster(t, 5, nil)
	old := c.leader()
	var first *node
	for _, n := range c.followers(old) {
		if first == nil || n.ID() < first.ID() {
			first = n
		}
	}
	before := c.now
	old.crash()
	first.crash()
	for _, n := range c.followers(old) {
		if n != first {
			n.Unreachable(old.store.Member(), true)
		}
	}
	require.NotNil(t, c.leader())
	require.Less(t, c.now-before, 400*time.Millisecond)
}

// A leader that lives keeps its term when one follower takes it for gone.
func TestWrongReportOfOneFollower(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	term := l.Status().Header.Term
	for range 20 {
		for _, n := range c.followers(l)[:1] {
			n.Unreachable(l.ID(), true)
		}
		c.run(3 * tick)
	}
	c.run(2 * time.Second)
	require.Same(t, l, c.leader())
	require.Equal(t, term, l.Status().Header.Term)
}

// Reports about others than the leader, and at learners, change nothing.
func TestGoneFollower(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	term := l.Status().Header.Term
	followers := c.followers(l)
	l.Unreachable(followers[0].ID(), true)
	l.Unreachable(l.ID(), true)
	followers[1].Unreachable(followers[0].ID(), true)
	followers[1].Unreachable(0, true)
	c.run(2 * time.Second)
	require.Same(t, l, c.leader())
	require.Equal(t, term, l.Status().Header.Term)
}
