package member_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/blackhole/blackhole/internal/coordination/machine"
)

// A commit costs an append and an acknowledgement for each follower: the next append tells the commit index, or a message of its
// own a millisecond later. A reader at a follower does not wait for that.
func TestMessagesOfACommit(t *testing.T) {
	three(t, nil, func(t *testing.T, n *network) {
		l := n.leader(t, nil)
		time.Sleep(10 * time.Second) // all have joined
		has := func(e *end, key string) (found bool) {
			e.View(func(m *machine.Machine) { _, found = m.Get(key) })
			return found
		}
		const commits = 100
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

		l.do(t, put("alone", "v"))
		time.Sleep(time.Millisecond)
		require.Eventually(t, func() bool { return has(f, "alone") }, time.Millisecond, time.Microsecond)
	})
}
