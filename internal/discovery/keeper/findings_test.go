package keeper

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// statement signs a finding about a provider with the key of a peer.
func (n *node) statement(t testing.TB, about peer.ID, s records.Reachability) []byte {
	t.Helper()
	data, err := protocol.SignFindings("test", n.host.Peerstore().PrivKey(n.Self), []protocol.Finding{{Provider: about, State: s, CheckedAt: n.Now()}})
	require.NoError(t, err)
	return data
}

// TestWitnessesMeet: findings about the peer of a provider and about endpoints reach the witnesses of the provider,
// which know that they are, and from there all who ask. A witness has one of these check.
func TestWitnessesMeet(t *testing.T) {
	for _, size := range []int{3, 30} {
		synctest.Test(t, func(t *testing.T) {
			w := newCluster(t, size, never)
			provider := keepertest.NewProvider(t).Id
			var measurer *node
			witnesses := 0
			for _, n := range w.nodes {
				if ids := n.OwnWitnesses(provider); len(ids) > 0 {
					measurer = n
					witnesses++
					require.LessOrEqual(t, len(ids), ask.Witnesses)
				}
			}
			require.Equal(t, min(size, ask.Witnesses), witnesses)
			require.Empty(t, measurer.OwnWitnesses(measurer.Self), "nobody is a witness of itself")
			own, err := protocol.SignFindings("test", measurer.host.Peerstore().PrivKey(measurer.Self), []protocol.Finding{
				{Provider: provider, Record: "a", State: records.Answers, CheckedAt: measurer.Now()},
				{Provider: provider, State: records.Unreachable, CheckedAt: measurer.Now()},
			})
			require.NoError(t, err)
			measurer.Witness(t.Context(), provider, nil, own)
			for _, n := range w.nodes {
				if n == measurer {
					continue
				}
				direct := false
				for _, id := range []string{"a", ""} {
					told := n.Witness(t.Context(), provider, []string{id}, nil)
					require.NotEmpty(t, told)
					for _, d := range told {
						require.Equal(t, measurer.Self, d.Statement.By)
						direct = direct || d.From.IsValid()
					}
				}
				require.True(t, direct, "the measurer delivers it itself, so its network is known")
				require.Empty(t, n.Witness(t.Context(), provider, []string{"b"}, nil))
				var handed records.Name
				n.Asked = func(name records.Name, by peer.ID) {
					require.Equal(t, measurer.Self, by)
					handed = name
				}
				measurer.Hand(t.Context(), n.Self, records.Name{Provider: provider, ID: "a"})
				require.Equal(t, records.Name{Provider: provider, ID: "a"}, handed)
				n.Asked = nil
			}
		})
	}
}

// TestFindingsAreRefused: a statement comes from its measurer only, intact, and not in a flood.
func TestFindingsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, never)
		about := keepertest.NewProvider(t).Id
		a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
		send := func(own []byte) error {
			req := &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Own: own}}}
			_, _, err := a.client.Call(t.Context(), b.Self, req)
			return err
		}
		require.NoError(t, send(a.statement(t, about, records.Unreachable)))
		require.ErrorIs(t, send(c.statement(t, about, records.Unreachable)), fault.Unauthentic)
		require.ErrorIs(t, send([]byte("nonsense")), fault.Invalid)
		require.ErrorIs(t, send(make([]byte, protocol.MaxStatement+1)), fault.TooLarge)
		var err error
		from := protocol.Source{Peer: a.Self, Prefix: netip.MustParsePrefix("198.51.100.0/24")}
		flood := &pb.FindingsRequest{Own: a.statement(t, about, records.Busy)}
		for range 100_000 { // at one moment
			if _, err = b.Findings.Serve(from, flood); err != nil {
				break
			}
		}
		require.ErrorIs(t, err, fault.LimitReached)
	})
}
