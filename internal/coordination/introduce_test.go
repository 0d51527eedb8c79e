package coordination_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/transport"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// TestInfoRequestOfALaterVersion: with it peers of all versions introduce themselves, so unknown fields are ignored, at
// any depth.
func TestInfoRequestOfALaterVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2)
		w.start(0, w.listed(1))
		w.await("a leader", func() bool { return w.leader() == 0 })
		x := w.exchange(1)

		req := &groupv1.InfoRequest{Name: "of-tomorrow", Levels: &groupv1.Levels{Max: 9}}
		for _, m := range []proto.Message{req, req.Levels} {
			m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
		}
		b, err := proto.Marshal(req)
		require.NoError(t, err)
		answer, err := x.Ask(t.Context(), w.peers[0].host.ID(), transport.Information, b)
		require.NoError(t, err)
		resp := new(groupv1.InfoResponse)
		require.NoError(t, proto.Unmarshal(answer, resp))
		require.NotEmpty(t, resp.GetInfo().GetGroupId())
		require.EqualValues(t, 1, resp.GetVoters())
	})
}
