package replica_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/platform/store/storetest"
)

// TestPutBack puts the whole folder of one voter back to earlier moments, among crashes, cuts, elections and writes. In the
// end all voters talk to each other. Then either nobody leads, or the leader has every acknowledged write and the members
// that did not stop have its state. TEST_SEEDS plays more seeds.
func TestPutBack(t *testing.T) {
	seeds := 60
	if n, err := strconv.Atoi(os.Getenv("TEST_SEEDS")); err == nil {
		seeds = n
	}
	ends := map[string]int{}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { ends[putBack(t, seed)]++ })
	}
	t.Log(ends)
	require.Positive(t, ends["nobody leads"], "a majority that forgot stops")
	require.Positive(t, ends["a member stopped"], "a member that forgot stops")
}

// putBack plays a seed and returns how it ended.
func putBack(t *testing.T, seed uint64) string {
	c := newSeeded(t, 3, seed, nil)
	random := rand.New(rand.NewPCG(seed, 7))
	victim := c.nodes[random.IntN(3)]
	acknowledged, written := map[string]time.Duration{}, 0 // when
	var copies []*vfs.MemFS
	proposed := map[uint64]string{}
	note := func() {
		for _, n := range c.nodes {
			for id, key := range proposed {
				if a, ok := n.answers[id]; ok && a.Err == nil {
					if _, known := acknowledged[key]; !known {
						acknowledged[key] = c.now
					}
				}
			}
		}
	}
	crash := func(n *node) { // a member need not know after a restart what was committed just before
		note()
		maps.DeleteFunc(acknowledged, func(_ string, at time.Duration) bool { return c.now-at < time.Second })
		maps.DeleteFunc(proposed, func(_ uint64, key string) bool { _, known := acknowledged[key]; return !known })
		n.crash()
	}
	for _, n := range c.nodes {
		n.refuses = true
	}
	for range 12 + random.IntN(20) {
		n := c.nodes[random.IntN(3)]
		switch random.IntN(9) {
		case 0, 1, 2:
			for range 1 + random.IntN(30) {
				if leads := slices.IndexFunc(c.nodes, func(n *node) bool { return !n.down && n.Status().Promoted }); leads >= 0 {
					written++
					key := fmt.Sprint("key", written)
					proposed[c.nodes[leads].propose(coordtest.Command("owner", put(key, "v")))] = key
					c.settle()
				}
			}
		case 3:
			if !victim.down {
				copies = append(copies, storetest.Copy(victim.fs))
			}
		case 4:
			if len(copies) > 0 && victim.stopped == nil {
				if !victim.down {
					crash(victim)
				}
				victim.fs = storetest.Copy(copies[random.IntN(len(copies))])
				victim.restart()
			}
		case 5:
			if !n.down {
				crash(n)
			}
		case 6:
			if n.down && n.stopped == nil {
				n.restart()
			}
		case 8: // the others do not meet, and the victim forgets what it told one of them
			if len(copies) == 0 || victim.stopped != nil {
				continue
			}
			others := c.followers(victim)
			away := others[random.IntN(2)]
			for _, n := range c.nodes {
				if !n.down && n != away {
					crash(n)
				}
			}
			victim.fs = storetest.Copy(copies[random.IntN(len(copies))])
			victim.restart()
			if away.down && away.stopped == nil {
				away.restart()
			}
		case 7:
			c.isolate(n, !c.cut[[2]uint64{n.store.Member(), c.followers(n)[0].store.Member()}])
		}
		for end := c.now + time.Duration(random.IntN(3000))*time.Millisecond; c.now < end; note() {
			c.run(tick)
		}
	}
	clear(c.cut)
	for _, n := range c.nodes {
		if n.down && n.stopped == nil {
			n.restart()
		}
	}
	c.run(20 * time.Second)
	note()
	return c.judge(acknowledged)
}

// judge checks the end of putBack.
func (c *cluster) judge(acknowledged map[string]time.Duration) string {
	c.t.Helper()
	var leader *node
	stopped := 0
	for _, n := range c.nodes {
		switch {
		case n.stopped != nil:
			stopped++
		case n.Status().Promoted:
			require.Nil(c.t, leader, "two leaders")
			leader = n
		}
	}
	if leader == nil {
		require.GreaterOrEqual(c.t, stopped, 2, "nobody leads without a reason")
		return "nobody leads"
	}
	last, _ := leader.store.LastIndex()
	sum, known, err := leader.store.Sum(last)
	require.NoError(c.t, err)
	require.True(c.t, known)
	for _, n := range c.nodes {
		if n.stopped == nil {
			require.Equal(c.t, leader.Machine().Image().Hash(), n.Machine().Image().Hash())
			same, _, err := n.store.Sum(last)
			require.NoError(c.t, err)
			require.Equal(c.t, sum, same, "the logs are equal, also behind a snapshot")
		}
	}
	for key := range acknowledged {
		_, found := leader.Machine().Get(key)
		require.True(c.t, found, "%s was acknowledged", key)
	}
	if stopped > 0 {
		return "a member stopped"
	}
	return "all go on"
}
