package keeper

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/ask"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/discovery/witness"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// statement signs a finding about a provider with the key of a peer.
func (n *node) statement(t testing.TB, about peer.ID, s records.Reachability) []byte {
	t.Helper()
	data, err := witness.Sign("test", n.host.Peerstore().PrivKey(n.Self), []witness.Finding{{Provider: about, State: s, CheckedAt: n.Now()}})
	require.NoError(t, err)
	return data
}

// TestFindingsMeet: peers with the same question exchange their measurements through the keepers nearest to its
// cell, in small and large networks.
func TestFindingsMeet(t *testing.T) {
	for _, size := range []int{3, 30} {
		synctest.Test(t, func(t *testing.T) {
			w := newCluster(t, size, never)
			plan, err := queries.Compile(query.Query{Type: "compute"}, queries.Defaults{})
			require.NoError(t, err)
			about := keepertest.NewProvider(t).Id
			first, second := w.nodes[0], w.nodes[size-1]
			require.Empty(t, second.Exchange(t.Context(), plan, []peer.ID{about}, nil))
			require.Empty(t, first.Exchange(t.Context(), plan, nil, first.statement(t, about, records.Reachable)))
			got := second.Exchange(t.Context(), plan, []peer.ID{about}, nil)
			require.NotEmpty(t, got)
			for _, d := range got {
				require.Equal(t, first.Self, d.Statement.By)
				require.Equal(t, records.Reachable, d.Statement.Findings[0].State)
			}
			require.Empty(t, first.Exchange(t.Context(), plan, []peer.ID{about}, nil), "its own statement is no news")
			require.Empty(t, second.Exchange(t.Context(), plan, []peer.ID{keepertest.NewProvider(t).Id}, nil))
			time.Sleep(witness.Life)
			require.Empty(t, second.Exchange(t.Context(), plan, []peer.ID{about}, nil))
		})
	}
}

// TestWitnessesMeet: findings about endpoints reach the witnesses of the provider, which know that they are, and from there all who ask. A
// witness has one of these check.
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
			own, err := witness.Sign("test", measurer.host.Peerstore().PrivKey(measurer.Self), []witness.Finding{{Provider: provider, Record: "a", State: records.Answers, CheckedAt: measurer.Now()}})
			require.NoError(t, err)
			measurer.Witness(t.Context(), provider, nil, own)
			for _, n := range w.nodes {
				if n == measurer {
					continue
				}
				direct := false
				for _, d := range n.Witness(t.Context(), provider, []string{"a"}, nil) {
					require.Equal(t, measurer.Self, d.Statement.By)
					direct = direct || d.From.IsValid()
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
		require.ErrorIs(t, send(make([]byte, witness.MaxSize+1)), fault.TooLarge)
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
