package keep

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// fixed is a Router with a table of some peers.
type fixed struct{ peers []peer.ID }

func (f *fixed) Closest(_ context.Context, key string) ([]peer.ID, error) {
	return Nearest(key, f.peers, Network), nil
}
func (f *fixed) Nearby(key string, n int) []peer.ID { return Nearest(key, f.peers, n) }
func (f *fixed) Size() int                          { return len(f.peers) }
func (f *fixed) Serving() bool                      { return true }

func authorityOf(self peer.ID, r protocol.Router) *Authority {
	life := protocol.NewLife(protocol.Config{Self: self, Now: time.Now})
	return NewAuthority(NewClosest(life, ClosestConfig{Router: r}), soundly(r))
}

// soundly is for a peer with a right clock and room in its index, which compares.
func soundly(r protocol.Router) AuthorityConfig {
	return AuthorityConfig{
		Router: r, Compares: true, ClockFault: func() string { return "" }, Crowded: func(time.Time) bool { return false },
	}
}

// A comparison counts as long as this peer remains a keeper of the cell.
func TestComparisonCountsWhileKeeper(t *testing.T) {
	c := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
	key := KeyOf(c)
	order := Nearest(key, keepertest.PeersOf(30), 30)
	self := order[Replicas] // the first peer that is not a keeper
	others := slices.DeleteFunc(slices.Clone(order), func(id peer.ID) bool { return id == self })
	y := authorityOf(self, &fixed{peers: others})
	tell := func(known, done []peer.ID) {
		met := make(map[peer.ID]Partner)
		for _, id := range done {
			met[id] = Partner{Informed: true}
			y.Know.Met(id, true)
		}
		y.Keep(&Round{Table: &TableState{Table: NewTable(self, known, false)}, Done: met})
	}
	require.NotEmpty(t, y.Doubt(c), "before the first round")
	tell(others, others)
	require.NotEmpty(t, y.Doubt(c), "not a keeper at that time")
	tell(others[1:], nil)
	require.NotEmpty(t, y.Doubt(c), "a round without answers")
	tell(others[1:], others[15:])
	require.NotEmpty(t, y.Doubt(c), "with peers that do not keep the cell")
	tell(others[1:], others[1:2])
	require.Empty(t, y.Doubt(c))
	tell(others[1:], nil)
	require.Empty(t, y.Doubt(c), "one comparison suffices")
	tell(others, others)
	require.NotEmpty(t, y.Doubt(c), "not a keeper in between")
	tell(others[1:], nil)
	require.NotEmpty(t, y.Doubt(c))
	for range 3 * roundsKept {
		tell(others[1:], others[1:])
	}
	require.Len(t, y.Last.Load().before, roundsKept)
	require.Empty(t, y.Doubt(c))
}

// In a small network a peer has authority while it is alone, and otherwise after a comparison with an
// informed keeper, or with all peers of a new network.
func TestAuthorityInASmallNetwork(t *testing.T) {
	r := &fixed{peers: keepertest.PeersOf(2)}
	y, c := authorityOf("self", r), records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: geo.Global}
	require.NotEmpty(t, y.Doubt(c), "before the first round")
	y.Know.Met(r.peers[0], false)
	require.NotEmpty(t, y.Doubt(c), "with another joiner")
	y.Know.Met(r.peers[1], true)
	require.Empty(t, y.Doubt(c))

	r.peers = append(r.peers, "late")
	require.NotEmpty(t, y.Doubt(c), "a newcomer may have records")
	y.Know.Met("late", false)
	require.Empty(t, y.Doubt(c))
}
