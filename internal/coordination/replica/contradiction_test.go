package replica_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestRestoredMember: the whole folder of a member, its mark included, comes from a copy. The leader that has its later
// acknowledgements makes it stop, and the others go on.
func TestRestoredMember(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.leader()
	restored := c.followers(l)[0]
	c.agree()
	early := storetest.Copy(restored.fs)
	for i := range 20 {
		l.do(put(fmt.Sprint("key", i), "v"))
	}
	c.agree()
	restored.crash()
	restored.fs, restored.refuses = early, true
	restored.restart()
	c.until("it stops", func() bool { return restored.stopped != nil })
	require.ErrorIs(t, restored.stopped, fault.Internal)
	require.ErrorContains(t, restored.stopped, "restored from a copy")
	l.do(put("more", "v"))
	require.Same(t, l, c.leader())
}

// TestRestoredMajority: a restored member and one that was away elect a leader without acknowledged entries. As soon as
// the third member hears that leader, both stop: there are never two answers to one question.
func TestRestoredMajority(t *testing.T) {
	c := newCluster(t, 3, nil)
	whole := c.leader()
	restored, away := c.followers(whole)[0], c.followers(whole)[1]
	c.agree()
	early := storetest.Copy(restored.fs)
	away.crash()
	for i := range 20 {
		whole.do(put(fmt.Sprint("key", i), "v"))
	}
	c.run(time.Second)
	whole.crash()
	restored.crash()
	restored.fs = early
	restored.restart()
	away.restart()
	leader := c.leader()
	require.NotSame(t, whole, leader)
	for _, n := range c.nodes {
		n.refuses = true
	}
	whole.restart()
	c.until("both stop", func() bool { return whole.stopped != nil && leader.stopped != nil })
	require.ErrorContains(t, whole.stopped, "this member applied that of term")
	require.ErrorContains(t, leader.stopped, "acknowledged entries are missing here")
	c.run(10 * time.Second)
	for _, n := range c.nodes {
		require.True(t, n.down || !n.Status().Leads, "no majority is left")
	}
}

func (c *cluster) followers(leader *node) (all []*node) {
	for _, n := range c.nodes {
		if n != leader {
			all = append(all, n)
		}
	}
	return all
}

// TestRestoredBeforeElection: the copy of the restored member is older than an election, so the member forgot its vote and
// votes again in the same term. Two leaders of one term write entries with equal indexes and terms, and other contents.
// No member may go on with both, whoever comes first.
func TestRestoredBeforeElection(t *testing.T) {
	for _, test := range []struct {
		name string
		away bool // the second leader, when the first one returns
	}{{"all at once", false}, {"without the second leader", true}} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, 3, nil)
			whole := c.leader()
			restored, away := c.followers(whole)[0], c.followers(whole)[1]
			c.agree()
			away.crash()
			restored.crash()
			early := storetest.Copy(restored.fs)
			c.until("no leader", func() bool { return !whole.Status().Leads })
			restored.restart()
			first := c.leader()
			for i := range 40 {
				first.do(put(fmt.Sprint("key", i), "v"))
			}
			c.run(time.Second)
			term := first.Status().Header.Term
			whole.crash()
			restored.crash()
			restored.fs = early
			restored.restart()
			away.restart()
			second := c.leader()
			for second.Status().Header.Term < term { // an election takes one term or more
				second.crash()
				second.restart()
				second = c.leader()
			}
			require.Equal(t, term, second.Status().Header.Term, "the second leader of one term")
			for i := range 5 {
				second.do(put(fmt.Sprint("other", i), "v"))
			}
			c.run(time.Second)
			for _, n := range c.nodes {
				n.refuses = true
			}
			other := c.followers(second)[0]
			if other == whole {
				other = c.followers(second)[1]
			}
			if test.away {
				second.crash()
			}
			whole.restart()
			c.run(10 * time.Second)
			require.Error(t, whole.stopped)
			left := other
			if test.away {
				require.Error(t, other.stopped)
				second.restart()
				c.run(10 * time.Second)
				left = second
			} else {
				require.Error(t, second.stopped)
			}
			require.False(t, left.Status().Promoted, "no majority is left")
		})
	}
}
