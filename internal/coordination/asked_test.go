package coordination_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/coordination/transport"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// TestMembershipIsSentOnce: who names the group has its membership already. All peers ask all the time.
func TestMembershipIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2)
		w.start(0, w.listed(1))
		w.await("a leader", func() bool { return w.leader() == 0 })
		x := w.exchange(1)
		ask := func(group []byte) *groupv1.GroupInfo {
			b, err := proto.Marshal(&groupv1.InfoRequest{GroupId: group})
			require.NoError(t, err)
			answer, err := x.Ask(t.Context(), w.peers[0].host.ID(), transport.Information, b)
			require.NoError(t, err)
			resp := new(groupv1.InfoResponse)
			require.NoError(t, proto.Unmarshal(answer, resp))
			return resp.GetInfo()
		}
		whole := ask(nil)
		require.NotEmpty(t, whole.GetMembership())
		require.NotEmpty(t, ask(make([]byte, len(whole.GetGroupId()))).GetMembership(), "of another group")
		again := ask(whole.GetGroupId())
		require.Empty(t, again.GetMembership())
		again.Membership = whole.GetMembership()
		require.True(t, proto.Equal(whole, again))
	})
}

// TestIdleClientLearnsOfNoLeader: a client with nothing but a watch learns within seconds that the group has no leader.
func TestIdleClientLearnsOfNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startCluster(t, 4, 3)
		client := w.peers[3]
		w.await("the client knows the leader", func() bool { return client.leads() == w.peers[w.leader()].id() })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = ops.Of(client).Events(t.Context(), coord.Watch{Span: coord.Exactly("k")}, func(coord.Batch, coord.Header) error { return nil })
		}()
		time.Sleep(time.Minute)
		old := w.leader()
		w.peers[(old+1)%3].stop(t)
		w.peers[(old+2)%3].stop(t)
		began := time.Now()
		w.await("nobody leads", func() bool { return client.leads() == "" })
		require.Less(t, time.Since(began), 6*time.Second)
		client.stop(t)
		<-ended
	})
}

// TestWhoMayAsk is the table topic x asker of the questions between peers. Only members learn the hash of a state, and no
// question, of any number, is an order.
func TestWhoMayAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 5) // three members, a client, and a stranger that runs no plane
		for i := range 4 {
			w.start(i, w.listed(3))
		}
		w.await("three voters", func() bool { return w.leader() >= 0 && len(w.state().Voters) == 3 })
		at := w.leader()
		before := w.state().Revision
		for name, i := range map[string]int{"stranger": 4, "client": 3, "member": (at + 1) % 3} {
			x := w.exchange(i)
			for topic := range transport.Topic(12) {
				_, err := x.Ask(t.Context(), w.peers[at].host.ID(), topic, nil)
				switch {
				case topic == transport.Information || topic == transport.State && name == "member":
					require.NoError(t, err, "%s, topic %d", name, topic)
				case topic == transport.State:
					require.ErrorIs(t, err, fault.Forbidden, name)
				default:
					require.ErrorIs(t, err, fault.Unsupported, "%s, topic %d", name, topic)
				}
			}
		}
		require.Equal(t, before, w.state().Revision, "nobody raised it")
	})
}
