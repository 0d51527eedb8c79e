package keeper

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/pkg/records/recordstest"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// future turns messages of today into messages of a later version. Its bytes decide: an unknown field for some
// messages, an unknown value for some enums, an unknown operation.
type future struct {
	bytes    []byte
	must     bool // something was added that a reader has to understand
	replaced bool // an operation became a later one
}

func (f *future) next() byte {
	if len(f.bytes) == 0 {
		return 0
	}
	b := f.bytes[0]
	f.bytes = f.bytes[1:]
	return b
}

// change edits a message and all messages in it.
func (f *future) change(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() { // in the order of the schema: Range has none
		fd := fields.Get(i)
		switch v := m.Get(fd); {
		case !m.Has(fd) || fd.IsMap():
		case fd.Kind() == protoreflect.EnumKind && !fd.IsList():
			if n := f.next(); n%4 == 1 {
				m.Set(fd, protoreflect.ValueOfEnum(protoreflect.EnumNumber(1000+int(n))))
				f.must = true
			}
		case fd.Message() == nil:
		case fd.IsList():
			for j := range v.List().Len() {
				f.change(v.List().Get(j).Message())
			}
		case fd.ContainingOneof() != nil && f.next()%16 == 7: // another operation
			m.Clear(fd)
			m.SetUnknown(append(m.GetUnknown(), unknownField(400, "a later operation")...))
			f.must, f.replaced = true, true
		default:
			f.change(v.Message())
		}
	}
	if n := f.next(); n%2 == 1 {
		number := strictproto.OptionalFrom + protowire.Number(n)
		if n%4 == 1 {
			number = 300 + protowire.Number(n)
			f.must = true
		}
		kinds := [][]byte{
			unknownField(number, "of a later version"),
			protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1<<63),
			protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), 7),
			protowire.AppendTag(protowire.AppendTag(nil, number, protowire.StartGroupType), number, protowire.EndGroupType),
		}
		m.SetUnknown(append(m.GetUnknown(), kinds[int(f.next())%len(kinds)]...))
	}
}

// later returns the encoding of a message of a later version.
func (f *future) later(t testing.TB, m proto.Message) []byte {
	m = proto.Clone(m)
	f.change(m.ProtoReflect())
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return b
}

func addFutures(f *testing.F, kinds int) {
	random := rand.New(rand.NewPCG(13, 3))
	for i := range kinds {
		f.Add(byte(i), []byte{})
		f.Add(byte(i), bytes.Repeat([]byte{1}, 40))
		f.Add(byte(i), bytes.Repeat([]byte{3}, 40))
		for range 200 { // without -fuzz too
			choices := make([]byte, 40)
			for j := range choices {
				choices[j] = byte(random.Uint32())
			}
			f.Add(byte(i), choices)
		}
	}
}

// Any request of a later version is refused with what this version does not know, or answered like today's
// request.
func FuzzLaterRequest(f *testing.F) {
	p := newProvider(f)
	r := p.sign(f, offer("one"), 1, time.Now())
	cell := r.Cells()[0].String()
	near := &dpb.Query{Type: "compute", Limit: 3, Near: &dpb.Near{Latitude: 52}, Sort: dpb.Sort_SORT_PRICE, Health: dpb.Health_HEALTH_ANY, Attributes: map[string]string{"a": "b"}}
	requests := []*pb.Request{
		storeOf(item(r), item(r)),
		{TimeoutMs: 9_000, Op: &pb.Request_Query{Query: &pb.QueryRequest{Query: near, Cells: []string{cell}}}},
		{Op: &pb.Request_Sync{Sync: &pb.SyncRequest{Whole: true, Sums: make([]byte, 16), Cells: []*pb.SyncCell{{Cell: cell}}}}},
		{Op: &pb.Request_Pull{Pull: &pb.PullRequest{Ids: make([]byte, 16)}}},
		{Op: &pb.Request_Watch{Watch: &pb.WatchRequest{Query: near, Cells: []string{cell}, After: &pb.Cookie{Epoch: 1}}}},
		{Op: &pb.Request_Summary{Summary: &pb.SummaryRequest{Cells: []string{cell}}}},
		{Op: &pb.Request_Resolve{Resolve: &pb.ResolveRequest{Key: r.Key().String()}}},
		{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Providers: [][]byte{[]byte(p.id)}}}},
		{Op: &pb.Request_Forward{Forward: &pb.ForwardRequest{To: []byte(p.id), Items: []*pb.StoreItem{item(r)}}}},
	}
	addFutures(f, len(requests))
	k, counts := bare(f, 30, Limits{})
	f.Fuzz(func(t *testing.T, kind byte, choices []byte) {
		today := requests[int(kind)%len(requests)]
		version := &future{bytes: choices}
		b := version.later(t, today)
		codec := rpc.NewCodec(bytes.NewBuffer(delimited(b)), rpc.Unlimited{}, rpc.Format{MaxSize: MaxRequest, Strict: true, Check: requestBounds().check})
		req := new(pb.Request)
		err := codec.ReadMessage(req)
		if version.must {
			require.ErrorIs(t, err, fault.Unsupported)
			require.NotEmpty(t, strictproto.PathsOf(err))
			resp := k.server.respond(source{}, new(pb.Request), err)
			require.Equal(t, strictproto.PathsOf(err), resp.Refusal.GetUnknown())
			require.Equal(t, strictproto.PathsOf(err), strictproto.PathsOf(rpc.Restore("", resp.Refusal)))
		} else {
			require.NoError(t, err)
			require.Equal(t, operationOf(today), operationOf(req))
			if req.GetWatch() == nil {
				resp := k.server.respond(source{}, req, nil)
				require.Equal(t, k.server.respond(source{}, today, nil).Refusal.GetCode(), resp.Refusal.GetCode(), resp.Refusal.GetMessage())
			}
		}
		require.Empty(t, counts.distrusted)
	})
}

// Any response of a later version means what today's part of it means, or counts as a refusal. It is never a
// violation of the protocol.
func FuzzLaterResponse(f *testing.F) {
	p, now := newProvider(f), time.Now()
	r := p.sign(f, offer("one"), 1, now)
	price := 1.0
	summary := &pb.Summary{Cell: "u3", Count: 3, Prices: []*pb.BestPrice{{Currency: "usdc", PriceUnit: "per-hour", Price: price}}}
	plan := compile(f, query.Query{Limit: 3})
	q := cellQuery{plan: plan, cells: plan.Cells(coverCells)}
	split := &pb.Split{Cell: q.cells[0].String(), Children: []*pb.Summary{summary}}
	refusal := &peerv1.Refusal{Code: peerv1.Code_CODE_UNSUPPORTED, Field: "query.query.15", Message: "no", Unknown: []string{"query.query.15"}}
	responses := []*pb.Response{
		queried(&pb.QueryResponse{Envelopes: [][]byte{r.Envelope()}, Total: 1, Splits: []*pb.Split{split}}),
		{Op: &pb.Response_Store{Store: &pb.StoreResponse{Results: []*pb.StoreResult{{}, {Refusal: refusal, Sequence: 3}}, Splits: []*pb.Split{split}}}},
		{Op: &pb.Response_Resolve{Resolve: &pb.ResolveResponse{Envelope: r.Envelope()}}},
		{Refusal: refusal},
		{Op: &pb.Response_Summary{Summary: &pb.SummaryResponse{Summaries: []*pb.Summary{{Cell: string(q.cells[0].Cell), Count: 3, Prices: summary.Prices}}}}},
		{Op: &pb.Response_Watch{Watch: &pb.WatchResponse{Cookie: &pb.Cookie{Epoch: 1, Seq: 2}, Envelopes: [][]byte{r.Envelope()}, Left: [][]byte{r.Envelope()}}}},
	}
	addFutures(f, len(responses))
	k, counts := bare(f, 30, Limits{})
	k.Config.Host = addressed{}
	f.Fuzz(func(t *testing.T, kind byte, choices []byte) {
		today := responses[int(kind)%len(responses)]
		b := (&future{bytes: choices}).later(t, today)
		resp := new(pb.Response)
		require.NoError(t, responseCodec(bytes.NewBuffer(delimited(b))).ReadMessage(resp))
		if err := rpc.Restore("", resp.Refusal); err != nil {
			require.NotNil(t, today.Refusal)
			require.Contains(t, []fault.Kind{fault.Unsupported, fault.Unavailable}, fault.KindOf(err))
			k.client.lacking.note("later", err)
		}
		if today.GetWatch() != nil && resp.Op == nil {
			require.ErrorIs(t, (&follower{asker: k.asker, plan: plan, cell: q.cells[0]}).receive(t.Context(), "later", resp), fault.Unsupported)
		}
		if resp.Op == nil {
			return // a form of a later version: see asker.call
		}
		var err error
		switch op := resp.Op.(type) {
		case *pb.Response_Query:
			var a answer
			a, err = verifyAnswer(q, op.Query, k.Verifier, now)
			require.Len(t, a.records, 1)
			require.Len(t, a.splits, 1)
		case *pb.Response_Store:
			items := []storeItem{{wire: item(r, q.cells...)}, {wire: item(r, q.cells...)}}
			err = k.publisher.readStoreResponse("later", items, op.Store)
			require.NoError(t, items[0].err)
			require.Error(t, items[1].err)
		case *pb.Response_Resolve:
			var v versionReply
			v, err = k.asker.readVersion(op.Resolve, r.Key())
			require.Equal(t, r.Digest(), v.newest.Digest())
		case *pb.Response_Summary:
			var all []cell.Summary
			all, err = parseSummaries(op.Summary, q.cells[:1])
			require.Len(t, all, 1)
			require.EqualValues(t, 3, all[0].Count)
		case *pb.Response_Watch:
			w := &follower{asker: k.asker, plan: plan, cell: q.cells[0]}
			err = w.receive(t.Context(), "later", resp)
			require.EqualValues(t, 2, w.cookie.GetSeq())
			latest, _ := k.Index.Latest(r.Name())
			require.Equal(t, r.Envelope(), latest.Envelope())
		}
		require.NoError(t, err)
		require.Empty(t, counts.distrusted)
	})
}

// partnerOf answers every call with a function.
type partnerOf struct {
	streams
	answer func(*pb.Request) []byte
}

func (p partnerOf) Call(_ context.Context, _ peer.ID, req, resp proto.Message) error {
	b := p.answer(req.(*pb.Request))
	if err := responseBounds().check(b); err != nil {
		return err
	}
	return proto.Unmarshal(b, resp)
}

// A comparison with a keeper of a later version brings its records, byte for byte, or ends as unsupported. The keeper is
// never blamed.
func FuzzLaterComparison(f *testing.F) {
	random := rand.New(rand.NewPCG(13, 4))
	f.Add([]byte{})
	for range 40 {
		choices := make([]byte, 40)
		for j := range choices {
			choices[j] = byte(random.Uint32())
		}
		f.Add(choices)
	}
	p := newProvider(f)
	held := []*records.Record{p.sign(f, offer("plain"), 1, time.Now()), p.later(f, "later", 1), p.later(f, "critical", 1, recordstest.Needs(feature))}
	f.Fuzz(func(t *testing.T, choices []byte) {
		a, counts := bare(t, 1, Limits{})
		b, _ := bare(t, 1, Limits{})
		for _, r := range held {
			_, err := b.Index.Put(r, time.Now())
			require.NoError(t, err)
		}
		version := &future{bytes: choices}
		a.client.pool = partnerOf{answer: func(req *pb.Request) []byte {
			return version.later(t, b.server.respond(source{peer: "peer-0"}, req, nil))
		}}
		_, err := a.sync.compare(t.Context(), "peer-0", a.sync.table())
		if version.replaced {
			require.ErrorIs(t, err, fault.Unsupported)
		} else {
			require.NoError(t, err)
			for _, r := range held {
				got, ok := a.Index.Get(r.Name())
				require.True(t, ok)
				require.Equal(t, r.Envelope(), got.Envelope())
			}
		}
		require.Empty(t, counts.distrusted)
	})
}
