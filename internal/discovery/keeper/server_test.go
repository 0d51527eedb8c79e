package keeper

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"
	"github.com/multiformats/go-varint"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// bare returns a keeper without a network that knows n other peers.
func bare(t testing.TB, n int, limits protocol.Limits) (*Keeper, *keepertest.Counts) {
	t.Helper()
	verifier, err := records.NewVerifier("test", 1000)
	require.NoError(t, err)
	counts := keepertest.NewCounts(t)
	d := &directory{peers: append(keepertest.PeersOf(n), "self")}
	c, err := protocol.Config{
		Network: "test",
		Host:    selfOnly{}, Router: router{d, "self"}, Index: index.New(index.Config{}), Verifier: verifier, Signals: protocol.Signals{Metrics: counts.Discovery},
		Self: "self", Limits: limits,
	}.Checked()
	require.NoError(t, err)
	k := assemble(c)
	t.Cleanup(k.Stop)
	k.authority.Keep(&keep.Round{Alone: true})
	return k, counts
}

func item(r *records.Record, cells ...records.CellKey) *pb.StoreItem {
	if cells == nil {
		cells = r.Cells()
	}
	it := &pb.StoreItem{Envelope: r.Envelope()}
	for _, c := range cells {
		it.Cells = append(it.Cells, c.String())
	}
	return it
}

func storeOf(items ...*pb.StoreItem) *pb.Request {
	return &pb.Request{Op: &pb.Request_Store{Store: &pb.StoreRequest{Items: items}}}
}

// Accepted and refused items, with reasons.
func TestStoreItemsAreIndependent(t *testing.T) {
	k, counts := bare(t, 5, protocol.Limits{})
	p, now := keepertest.NewProvider(t), time.Now()
	r := p.Sign(t, keepertest.Offer("one"), 5, now)
	forged := bytes.Clone(r.Envelope())
	forged[len(forged)-1] ^= 1
	lapsed, err := records.Sign("test", p.Key, keepertest.Offer("lapsed"), records.Stamp{Sequence: 1, Issued: now.Add(-2 * time.Hour), Expires: now.Add(-time.Hour)})
	require.NoError(t, err)
	munich := records.CellKey{Type: "compute", Subtype: "gpu", Cell: geo.CellOf(geo.Point{Lat: 48.1, Lon: 11.6}, 4)}
	twin := p.Sign(t, keepertest.Offer("one", keepertest.Priced(2)), 5, now)

	cells := item(r).Cells
	for _, tc := range []struct {
		name     string
		item     *pb.StoreItem
		kind     fault.Kind
		field    string
		sequence uint64
		reason   string
	}{
		{"no cells", &pb.StoreItem{Envelope: r.Envelope()}, fault.Invalid, "cells", 0, "invalid"},
		{"too many cells", &pb.StoreItem{Envelope: r.Envelope(), Cells: slices.Repeat(cells, 2)}, fault.Invalid, "cells", 0, "invalid"},
		{"not a cell", &pb.StoreItem{Envelope: r.Envelope(), Cells: []string{"/blackhole/services/compute/gpu/ailo"}}, fault.Invalid, "cells", 0, "invalid"},
		{"another place", item(r, munich), fault.Invalid, "cells", 0, "wrong_cell"},
		{"another type", item(r, records.CellKey{Type: "storage", Subtype: "_", Cell: geo.Global}), fault.Invalid, "cells", 0, "wrong_cell"},
		{"one wrong among right", item(r, append(r.Cells()[:3], munich)...), fault.Invalid, "cells", 0, "wrong_cell"},
		{"nothing", &pb.StoreItem{Cells: cells}, fault.Unauthentic, "", 0, "unauthentic"},
		{"forged", &pb.StoreItem{Envelope: forged, Cells: cells}, fault.Unauthentic, "", 0, "unauthentic"},
		{"too large", &pb.StoreItem{Envelope: make([]byte, records.MaxSize+1), Cells: cells}, fault.TooLarge, "", 0, "too_large"},
		{"lapsed", item(lapsed), fault.Conflict, "expires_at", 0, "conflict"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := counts.Refusals(tc.reason)
			resp := k.server.respond(protocol.Source{}, storeOf(tc.item), nil)
			require.Len(t, resp.GetStore().GetResults(), 1)
			got := resp.GetStore().Results[0]
			require.NotNil(t, got.Refusal)
			require.Equal(t, tc.kind.String(), fault.Kind(got.Refusal.Code).String(), got.Refusal.Message)
			require.Equal(t, tc.field, got.Refusal.Field)
			require.Equal(t, tc.sequence, got.Sequence)
			require.Equal(t, before+1, counts.Refusals(tc.reason))
			require.Zero(t, k.Index.Len())
		})
	}

	resp := k.server.respond(protocol.Source{}, storeOf(item(lapsed), item(r), item(r), item(p.Sign(t, keepertest.Offer("one"), 4, now)), item(twin)), nil)
	got := resp.GetStore().Results
	require.NotNil(t, got[0].Refusal, "a bad item does not affect the next")
	require.Nil(t, got[1].Refusal)
	require.Nil(t, got[2].Refusal, "this version is stored already")
	require.EqualValues(t, fault.Exists, got[3].Refusal.Code)
	require.Equal(t, uint64(5), got[3].Sequence)
	require.Equal(t, 1, counts.Refusals("equivocation"))
	kept, ok := k.Index.Get(r.Name())
	require.True(t, ok)
	if records.Compare(twin, r) > 0 {
		r = twin
	}
	require.Equal(t, r.Digest(), kept.Digest(), "all keepers prefer the same of two versions with one sequence")
}

// An item may name every cell that a record belongs to, those below a divided cell too, and no cell more.
func TestStoreTakesTheMostCells(t *testing.T) {
	k, counts := bare(t, 5, protocol.Limits{})
	r := keepertest.NewProvider(t).Sign(t, keepertest.Offer("one"), 1, time.Now())
	at, _ := r.Facts().Place()
	places := []geo.Cell{geo.Global}
	for length := 1; length <= geo.DeepLen; length++ {
		places = append(places, geo.CellOf(at, length))
	}
	cells := []records.CellKey{records.ProviderCell(r.Name().Provider)}
	for _, c := range places {
		for _, subtype := range []string{records.AnySubtype, "gpu"} {
			cells = append(cells, records.CellKey{Type: "compute", Subtype: subtype, Cell: c})
		}
	}
	require.Len(t, cells, protocol.MaxItemCells)

	resp := k.server.respond(protocol.Source{}, storeOf(item(r, append(cells, cells[0])...)), nil)
	refusal := resp.GetStore().GetResults()[0].GetRefusal()
	require.Equal(t, fault.Invalid.String(), fault.Kind(refusal.GetCode()).String(), refusal.GetMessage())
	require.Equal(t, "cells", refusal.GetField())
	require.Equal(t, 1, counts.Refusals("invalid"))
	require.Zero(t, k.Index.Len())

	resp = k.server.respond(protocol.Source{}, storeOf(item(r, cells...)), nil)
	require.Nil(t, resp.GetStore().GetResults()[0].GetRefusal())
	_, ok := k.Index.Get(r.Name())
	require.True(t, ok)
}

// A peer far from a cell refuses it; keep.AcceptWithin is twice Replicas.
func TestStoreRefusesForeignCells(t *testing.T) {
	k, counts := bare(t, 200, protocol.Limits{})
	p := keepertest.NewProvider(t)
	reach := 40 / (19 / shareOf("self", k.Router.Nearby("self", 20)[19])) // within it there should be 40 peers
	for i := range 40 {
		o := keepertest.Offer("one", keepertest.Nowhere)
		o.ID, o.Metadata.Type, o.Capabilities = "x", "type-"+string(rune('a'+i%26))+string(rune('a'+i/26)), nil
		r := p.Sign(t, o, 1, time.Now())
		key := keep.KeyOf(r.Cells()[0])
		near := keep.Nearest(key, append(k.Router.(router).others(), "self"), keep.AcceptWithin)
		keeps := near[len(near)-1] == "self" || bytesLess(key, "self", near[len(near)-1]) || shareOf(key, "self") < reach
		before := k.Index.Len()
		resp := k.server.respond(protocol.Source{}, storeOf(item(r, r.Cells()[0])), nil)
		require.Equal(t, keeps, resp.GetStore().Results[0].Refusal == nil)
		require.Equal(t, keeps, k.Index.Len() > before || before == 1)
		if !keeps {
			require.Equal(t, "cells", resp.GetStore().Results[0].Refusal.Field)
		}
		k.Index.Remove(r.Name())
	}
	require.NotZero(t, counts.Refusals("not_kept"))
	require.Less(t, counts.Refusals("not_kept"), 40)
}

// shareOf returns a distance as a share of the greatest one.
func shareOf(key string, id peer.ID) float64 {
	d := distanceOf(key, id)
	return float64(binary.BigEndian.Uint64(d[:])) / math.Exp2(64)
}

func bytesLess(key string, a, b peer.ID) bool {
	x, y := distanceOf(key, a), distanceOf(key, b)
	return bytes.Compare(x[:], y[:]) < 0
}

func TestStoreQuota(t *testing.T) {
	k, counts := bare(t, 5, protocol.Limits{StoreRate: 1, StoreBurst: 3})
	now := time.Now()
	k.Now = func() time.Time { return now } // otherwise a slow machine would earn tokens
	recs := keepertest.Batch(t, keepertest.NewProvider(t), 5, now)
	var items []*pb.StoreItem
	for _, r := range recs {
		items = append(items, item(r))
	}
	from := protocol.Source{Prefix: netip.MustParsePrefix("198.51.100.0/24")}
	resp := k.server.respond(from, storeOf(items...), nil)
	for i, r := range resp.GetStore().Results {
		require.Equal(t, i < 3, r.Refusal == nil)
	}
	require.Equal(t, 2, counts.Refusals("rate"))
	resp = k.server.respond(protocol.Source{Exempt: true}, storeOf(items...), nil)
	for _, r := range resp.GetStore().Results {
		require.Nil(t, r.Refusal)
	}
}

// connFrom is a connection of a peer at an address.
type connFrom struct {
	network.Conn
	at multiaddr.Multiaddr
}

func (connFrom) RemotePeer() peer.ID                    { return "publisher" }
func (c connFrom) RemoteMultiaddr() multiaddr.Multiaddr { return c.at }

// A process on this machine has the quota of its address, except in a network of one machine.
func TestLoopbackHasAQuota(t *testing.T) {
	for _, oneMachine := range []bool{false, true} {
		for _, at := range []string{"/ip4/127.0.0.1/tcp/1", "/ip4/127.9.9.9/tcp/1", "/ip6/::1/tcp/1", "/ip6/::ffff:127.0.0.1/tcp/1"} {
			k, counts := bare(t, 5, protocol.Limits{StoreRate: 1, StoreBurst: 3, Loopback: oneMachine})
			now := time.Now()
			k.Now = func() time.Time { return now }
			var items []*pb.StoreItem
			for _, r := range keepertest.Batch(t, keepertest.NewProvider(t), 5, now) {
				items = append(items, item(r))
			}
			resp := k.server.respond(k.server.source(connFrom{at: multiaddr.StringCast(at)}), storeOf(items...), nil)
			for i, r := range resp.GetStore().Results {
				require.Equal(t, oneMachine || i < 3, r.Refusal == nil, "%s, item %d", at, i)
			}
			require.Equal(t, oneMachine, counts.Refusals("rate") == 0, at)
		}
	}
}

func TestQueryRefuses(t *testing.T) {
	k, _ := bare(t, 5, protocol.Limits{})
	global := "/blackhole/services/compute/_/global"
	lat := &dpb.Near{Latitude: 91}
	many := make([]string, protocol.MaxQueryCells+1)
	for i := range many {
		many[i] = global
	}
	for _, tc := range []struct {
		name  string
		query *dpb.Query
		cells []string
		field string
	}{
		{"no query", nil, []string{global}, "query"},
		{"no type", &dpb.Query{}, []string{global}, "type"},
		{"bad place", &dpb.Query{Type: "compute", Near: lat}, []string{global}, "near.latitude"},
		{"no cells", &dpb.Query{Type: "compute"}, nil, "cells"},
		{"too many cells", &dpb.Query{Type: "compute"}, many, "cells"},
		{"another type", &dpb.Query{Type: "storage"}, []string{global}, "cells"},
		{"a subtype not asked for", &dpb.Query{Type: "compute"}, []string{"/blackhole/services/compute/gpu/global"}, "cells"},
		{"two subtypes", &dpb.Query{Type: "compute", Subtype: "gpu"}, []string{global, "/blackhole/services/compute/gpu/global"}, "cells"},
		{"limit", &dpb.Query{Type: "compute", Limit: queries.MaxLimit + 1}, []string{global}, "limit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := &pb.Request{Op: &pb.Request_Query{Query: &pb.QueryRequest{Query: tc.query, Cells: tc.cells}}}
			resp := k.server.respond(protocol.Source{}, req, nil)
			require.NotNil(t, resp.Refusal)
			require.EqualValues(t, fault.Invalid, resp.Refusal.Code)
			require.Equal(t, tc.field, resp.Refusal.Field)
		})
	}
	resp := k.server.respond(protocol.Source{}, new(pb.Request), nil)
	require.EqualValues(t, fault.Unsupported, resp.Refusal.Code, "an operation of a later version")
}

// A clause on a field, or with an operation, of a later version is no fault of the asker.
func TestClausesOfALaterVersion(t *testing.T) {
	k, _ := bare(t, 5, protocol.Limits{})
	for _, clause := range []*dpb.Clause{
		{Field: "compute.qubits", Op: dpb.Clause_OP_STATED},
		{Field: "compute.cpu_cores", Op: dpb.Clause_OP_PREFIX, Values: []string{"1"}},
		{Field: "compute.cpu_cores", Op: 99},
	} {
		q := &pb.QueryRequest{Query: &dpb.Query{Type: "compute", Where: []*dpb.Clause{clause}}, Cells: []string{"/blackhole/services/compute/_/global"}}
		resp := k.server.respond(protocol.Source{}, &pb.Request{Op: &pb.Request_Query{Query: q}}, nil)
		require.NotNil(t, resp.Refusal)
		require.EqualValues(t, fault.Unsupported, resp.Refusal.Code)
		require.Equal(t, []string{"query.query.where"}, strictproto.Names(new(pb.Request), resp.Refusal.Unknown))
	}
}

// Answers are ranked, bounded, restricted to the cells, and name the cells that this peer does not
// keep.
func TestQueryAnswer(t *testing.T) {
	k, _ := bare(t, 200, protocol.Limits{})
	recs := keepertest.Batch(t, keepertest.NewProvider(t), 10, time.Now())
	for _, r := range recs {
		_, err := k.Index.Put(r, time.Now())
		require.NoError(t, err)
	}
	ask := func(limit uint32, cells ...records.CellKey) *pb.QueryResponse {
		req := &pb.QueryRequest{Query: &dpb.Query{Type: "compute", Sort: dpb.Sort_SORT_PRICE, Currency: "USDC", PriceUnit: "per-hour", Limit: limit}}
		for _, c := range cells {
			req.Cells = append(req.Cells, c.String())
		}
		resp := k.server.respond(protocol.Source{}, &pb.Request{Op: &pb.Request_Query{Query: req}}, nil)
		require.Nil(t, resp.Refusal, resp.Refusal)
		return resp.GetQuery()
	}
	berlin := records.CellKey{Type: "compute", Subtype: "_", Cell: geo.CellOf(geo.Point{Lat: 52.52, Lon: 13.405}, 5)}
	munich := records.CellKey{Type: "compute", Subtype: "_", Cell: geo.CellOf(geo.Point{Lat: 48.1, Lon: 11.6}, 5)}

	got := ask(4, munich, berlin)
	require.Len(t, got.Envelopes, 4)
	require.Equal(t, recs[0].Envelope(), got.Envelopes[0])
	require.Equal(t, uint64(10), got.Total)
	require.True(t, got.Withheld)
	require.InDelta(t, 4.0, got.Bound, 1e-9, "the price of the best withheld match")

	require.False(t, got.TotalAtLeast, "exact total")

	got = ask(100, munich)
	require.Empty(t, got.Envelopes)
	require.False(t, got.Withheld)
	for _, c := range []records.CellKey{munich, berlin} {
		near := append(k.Router.Nearby(keep.KeyOf(c), keep.AcceptWithin), "self")
		require.Equal(t, !slices.Contains(keep.Nearest(keep.KeyOf(c), near, keep.AcceptWithin), "self"), len(ask(1, c).NotKept) == 1)
	}
}

// raw opens a stream of the protocol to a node and writes bytes.
func raw(t *testing.T, from, to *node, b []byte) network.Stream {
	t.Helper()
	s, err := from.host.NewStream(t.Context(), to.Self, protocol.Protocol("test"))
	require.NoError(t, err)
	_, err = s.Write(b)
	require.NoError(t, err)
	return s
}

// Every input gets a refusal or ends the stream, and the server still serves other peers.
func TestMalformedRequests(t *testing.T) {
	items := bytes.Repeat([]byte{0x0a, 0x00}, protocol.MaxItems+1)
	tooMany := append([]byte{0x12}, keepertest.Delimited(items)...)
	large := append([]byte{0x1a}, keepertest.Delimited(append([]byte{0x0a}, keepertest.Delimited(make([]byte, maxQueryRequest))...))...)
	for _, tc := range []struct {
		name  string
		bytes []byte
		kind  fault.Kind
		field string
	}{
		{"too long", varint.ToUvarint(protocol.MaxRequest + 1), fault.TooLarge, ""},
		{"absurdly long", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, fault.TooLarge, ""},
		{"no length", bytes.Repeat([]byte{0xff}, 12), fault.Unauthentic, ""},
		{"no message", keepertest.Delimited([]byte("\xff\xff\xff garbage")), fault.Unauthentic, ""},
		{"no text", keepertest.Delimited([]byte{0x1a, 0x03, 0x12, 0x01, 0xff}), fault.Unauthentic, ""},
		{"too many items", keepertest.Delimited(tooMany), fault.LimitReached, "store.items"},
		{"a large query", keepertest.Delimited(large), fault.TooLarge, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, 2)
				s := raw(t, w.nodes[0], w.nodes[1], tc.bytes)
				resp := new(pb.Response)
				require.NoError(t, responseCodec(s).ReadMessage(resp))
				require.NotNil(t, resp.Refusal)
				require.Equal(t, tc.kind.String(), fault.Kind(resp.Refusal.Code).String())
				require.Equal(t, tc.field, resp.Refusal.Field)
				_, err := io.ReadAll(s)
				require.NoError(t, err, "the stream ends")
				require.Equal(t, 1, w.nodes[1].counts.Refusals("malformed"))
				found, err := w.nodes[0].Query(t.Context(), keepertest.Compile(t, query.Query{}))
				require.NoError(t, err)
				require.True(t, found.Complete, found.Reason)
			})
		})
	}
}

// A peer that sends half a message, or nothing, does not hold a stream for long.
func TestSlowSender(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes []byte
		after time.Duration
	}{
		"half a message": {append(varint.ToUvarint(1000), 1, 2, 3), protocol.FrameTime},
		"silence":        {nil, streamIdle},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCluster(t, 2)
				s := raw(t, w.nodes[0], w.nodes[1], tc.bytes)
				require.NoError(t, s.SetReadDeadline(time.Now().Add(2*streamIdle)))
				start := time.Now()
				_, err := s.Read(make([]byte, 1))
				require.Error(t, err)
				require.InDelta(t, tc.after, time.Since(start), float64(time.Second))
			})
		})
	}
}

// The number of streams of one peer is bounded.
func TestStreamsPerPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, never, func(_ int, c *protocol.Config) { c.Limits.StreamsPerPeer = 2; c.Limits.Streams = 3 })
		ping := keepertest.Delimited(nil) // unsupported, but answered
		answered := func(from int) bool {
			s, err := w.nodes[from].host.NewStream(t.Context(), w.nodes[2].Self, protocol.Protocol("test"))
			if err == nil {
				_, err = s.Write(ping)
			}
			return err == nil && responseCodec(s).ReadMessage(new(pb.Response)) == nil
		}
		require.True(t, answered(0))
		require.True(t, answered(0))
		require.False(t, answered(0), "above the limit per peer")
		require.True(t, answered(1))
		require.False(t, answered(1), "above the limit in total")
		require.Equal(t, 2, w.nodes[2].counts.Refusals("busy"))
	})
}

// A request without a free slot in time is refused.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _ := bare(t, 3, protocol.Limits{Working: 1})
		k.server.turns.occupy(t)
		start := time.Now()
		req := storeOf()
		req.TimeoutMs = 700
		resp := k.server.respond(protocol.Source{}, req, nil)
		require.EqualValues(t, fault.Unavailable, resp.Refusal.Code)
		require.Equal(t, 700*time.Millisecond, time.Since(start))
		req.TimeoutMs = 1 << 31
		start = time.Now()
		k.server.respond(protocol.Source{}, req, nil)
		require.Equal(t, protocol.ServeMax, time.Since(start), "the maximum of this peer applies")
	})
}
