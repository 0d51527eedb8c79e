package member_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/replica"
)

// While commits follow each other, one costs an append and an acknowledgement for each follower: the next append tells the commit
// index. A reader at a follower does not wait for that, nor do the watches there of a commit that is alone.
func TestMessagesOfACommit(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		l := n.leader(t, nil)
		time.Sleep(10 * time.Second) // all have joined
		has := func(e *end, key string) bool {
			space, _ := e.Keyspace()
			_, found := space.Get(key)
			return found
		}
		const commits = 100
		l.do(t, put("first", "v"))
		before := n.sent(pb.MsgApp, pb.MsgAppResp)
		for i := range commits {
			l.do(t, put(fmt.Sprint("key", i), "v"))
		}
		require.LessOrEqual(t, n.sent(pb.MsgApp, pb.MsgAppResp)-before, 4*commits)

		f := n.followers(l)[0]
		last := fmt.Sprint("key", commits-1)
		require.False(t, has(f, last))
		began := time.Now()
		_, err := f.Barrier(t.Context())
		require.NoError(t, err)
		require.True(t, has(f, last))
		require.Equal(t, began, time.Now(), "the reader has waited")

		time.Sleep(time.Second)
		began = time.Now()
		l.do(t, put("alone", "v"))
		synctest.Wait()
		require.True(t, has(f, "alone"))
		l.do(t, put("after it", "v"))
		synctest.Wait()
		require.False(t, has(f, "after it"))
		require.Equal(t, began, time.Now())
		time.Sleep(replica.HoldFor)
		synctest.Wait()
		require.True(t, has(f, "after it"))
	})
}
