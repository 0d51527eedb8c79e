package keeper

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// requireTrust requires that no node of a cluster without hostile nodes distrusts another.
func (w *lightCluster) requireTrust() {
	w.t.Helper()
	for _, n := range w.nodes {
		require.Empty(w.t, n.counts.Distrust(), "%s distrusts an honest keeper", n.Self)
	}
}

// traveller is a record whose provider moves it over the world.
type traveller struct {
	provider keepertest.Provider
	offer    records.Offer
	current  *records.Record // nil before the first version
}

// travellers returns n records with subtypes, 20 of each provider.
func travellers(t testing.TB, n int, random *rand.Rand) []*traveller {
	all := make([]*traveller, n)
	var p keepertest.Provider
	for i := range all {
		if i%20 == 0 {
			p = keepertest.NewProvider(t)
		}
		all[i] = &traveller{provider: p, offer: keepertest.Offer(fmt.Sprintf("s%04d", i), func(o *records.Offer) {
			o.Metadata.Subtype = []string{"gpu", "cpu", ""}[i%3]
		})}
		all[i].move(random)
	}
	return all
}

// move changes the place of the record, and therefore its cells.
func (m *traveller) move(random *rand.Rand) {
	lat, lon := 140*random.Float64()-70, 360*random.Float64()-180
	m.offer.Location = &records.Location{Latitude: &lat, Longitude: &lon, Country: "DE"}
}

// sign returns the next version, after a tombstone for the place of the previous version.
func (m *traveller) sign(t testing.TB) (versions []*records.Record) {
	sequence := uint64(1)
	if m.current != nil {
		end := m.provider.Withdraw(t, m.current, time.Now())
		versions = append(versions, end)
		sequence = end.Sequence() + 1
	}
	m.current = m.provider.Sign(t, m.offer, sequence, time.Now())
	return append(versions, m.current)
}

// Honest keepers compare records with subtypes, which lie in overlapping cells, while peers join and
// records move from cell to cell: no keeper takes another for a liar, and every keeper ends with all
// records of its cells.
func TestHonestKeepersTrustEachOther(t *testing.T) {
	atSize(t)
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(8, 8))
		w := newLimitedCluster(t, 25, protocol.Limits{})
		defer w.close()
		all := travellers(t, 200, random)
		store := func(some []*traveller) {
			var recs []*records.Record
			for _, m := range some {
				recs = append(recs, m.sign(t)...)
			}
			for i, o := range w.nodes[random.IntN(len(w.nodes))].Store(t.Context(), recs) {
				require.True(t, o.Err == nil || recs[i].Withdrawn(), o.Err) // a tombstone may be older than the next version
			}
		}
		store(all)
		time.Sleep(time.Minute)
		for joined := range 2 {
			w.join(peer.ID(fmt.Sprintf("joiner %d", joined)), protocol.Limits{})
			for range 20 {
				some := make([]*traveller, 5)
				for i := range some {
					some[i] = all[random.IntN(len(all))]
				}
				slices.SortFunc(some, func(a, b *traveller) int { return strings.Compare(a.offer.ID, b.offer.ID) })
				some = slices.Compact(some)
				for _, m := range some {
					m.move(random)
				}
				store(some)
				time.Sleep(2 * time.Second)
			}
		}
		time.Sleep(2 * time.Minute)
		w.requireTrust()
		for _, m := range all {
			name := records.Name{Provider: m.provider.Id, ID: m.offer.ID}
			for _, n := range w.nodes {
				if r, ok := n.Index.Get(name); ok {
					for _, c := range r.Cells() {
						if slices.Contains(w.keepersOf(c), n) {
							require.Equal(t, m.current.Sequence(), r.Sequence(), "%s at %s", name, n.Self)
						}
					}
				}
			}
		}
	})
}

// A partner that lists a record several times, or received another version of it since, is honest.
func TestHonestPartner(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // start of virtual time
	p := keepertest.NewProvider(t)
	moved := func(o *records.Offer) { o.Metadata.Type = "database"; o.Capabilities = nil }
	first, second := p.Sign(t, keepertest.Offer("one"), 1, now), p.Sign(t, keepertest.Offer("one"), 2, now)
	third := p.Sign(t, keepertest.Offer("one", moved), 3, now)
	other := p.Sign(t, keepertest.Offer("two"), 1, now)
	list := func(recs ...*records.Record) (wire []byte) {
		for _, r := range recs {
			wire = digest.Append(wire, protocol.EntryOf(r, p.Id.String()))
		}
		return wire
	}
	for _, tc := range []struct {
		name   string
		listed []byte
		sent   []*records.Record
		want   []uint64 // sequences of "one" and "two" after the comparison; zero without the record
	}{
		{"listed twice", list(first, other, first), []*records.Record{first, other}, []uint64{1, 1}},
		{"listed in two versions", list(second, other, first), []*records.Record{second, other}, []uint64{2, 1}},
		{"sent twice", list(first, other), []*records.Record{first, first}, []uint64{1, 0}},
		{"updated", list(first, other), []*records.Record{second, other}, []uint64{2, 1}},
		{"moved to other cells", list(first, other), []*records.Record{third, other}, []uint64{3, 1}},
		{"dropped, and received in an older version", list(second, other), []*records.Record{first, other}, []uint64{0, 1}},
		{"dropped", list(second, other), []*records.Record{other}, []uint64{0, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, err := comparisonWith(t, answering(tc.listed, tc.sent))
				require.NoError(t, err)
				require.Zero(t, n.counts.Distrust()["unauthentic"])
				for i, r := range []*records.Record{first, other} {
					got, ok := n.Index.Latest(r.Name())
					require.Equal(t, tc.want[i] > 0, ok)
					if ok {
						require.Equal(t, tc.want[i], got.Sequence())
					}
				}
			})
		})
	}
}

// answering answers a comparison of a small network with one list of entries and some records.
func answering(listed []byte, sent []*records.Record) func(*pb.Request) *pb.Response {
	cell := records.CellKey{Type: "compute", Subtype: records.AnySubtype, Cell: "global"}
	return func(req *pb.Request) *pb.Response {
		if req.GetPull() != nil {
			resp := new(pb.PullResponse)
			for _, r := range sent {
				resp.Envelopes = append(resp.Envelopes, r.Envelope())
			}
			return &pb.Response{Op: &pb.Response_Pull{Pull: resp}}
		}
		resp := &pb.SyncResponse{Whole: true}
		switch asked := req.GetSync(); {
		case len(asked.GetCells()) > 0:
			resp.Entries = listed
		case len(asked.GetSums()) > digest.SumSize:
			resp.Cells = []*pb.SyncCell{{Cell: cell.String(), Sums: make([]byte, digest.SumSize)}}
		}
		return &pb.Response{Op: &pb.Response_Sync{Sync: resp}}
	}
}
