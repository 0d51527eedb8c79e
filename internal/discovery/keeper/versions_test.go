package keeper

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	libp2pprotocol "github.com/libp2p/go-libp2p/core/protocol"
	"github.com/multiformats/go-varint"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// A later version of the protocol, played by a host that rewrites the frames of today's keeper:
//
//   - its minor number is higher;
//   - its requests carry a field that older versions may ignore;
//   - its Query has field 900, a filter. Within its keeper the filter is the attribute laterFilter;
//   - its responses have unknown fields in every message.
const (
	laterField  protowire.Number = 900
	laterFilter                  = "later"
)

// laterProtocol returns the later version of today's protocol.
func laterProtocol(id libp2pprotocol.ID) libp2pprotocol.ID {
	if name, ok := strings.CutSuffix(string(id), "/1.0.0"); ok {
		return libp2pprotocol.ID(name + "/1.1.0")
	}
	return id
}

type laterHost struct{ host.Host }

func (h laterHost) NewStream(ctx context.Context, id peer.ID, ids ...libp2pprotocol.ID) (network.Stream, error) {
	var proposed []libp2pprotocol.ID
	for _, other := range ids {
		proposed = append(proposed, laterProtocol(other))
	}
	s, err := h.Host.NewStream(ctx, id, proposed...)
	if err != nil {
		return nil, err
	}
	return &rewriter{Stream: s, r: bufio.NewReader(s), out: rewrite(new(pb.Request), sendLater), in: rewrite(new(pb.Response), receiveLater)}, nil
}

func (h laterHost) SetStreamHandlerMatch(id libp2pprotocol.ID, match func(libp2pprotocol.ID) bool, handler network.StreamHandler) {
	h.Host.SetStreamHandlerMatch(laterProtocol(id), match, func(s network.Stream) {
		handler(&rewriter{Stream: s, r: bufio.NewReader(s), out: rewrite(new(pb.Response), answerLater), in: rewrite(new(pb.Request), serveLater)})
	})
}

func (h laterHost) RemoveStreamHandler(id libp2pprotocol.ID) {
	h.Host.RemoveStreamHandler(laterProtocol(id))
}

// rewriter changes the frames of a stream.
type rewriter struct {
	network.Stream
	r       *bufio.Reader
	pending bytes.Reader // rest of a received frame
	out, in func([]byte) []byte
}

func (s *rewriter) Write(frame []byte) (int, error) {
	_, n, err := varint.FromUvarint(frame)
	if err != nil {
		return 0, err
	}
	_, err = s.Stream.Write(keepertest.Delimited(s.out(frame[n:])))
	return len(frame), err
}

func (s *rewriter) Read(b []byte) (int, error) {
	if s.pending.Len() == 0 {
		size, err := varint.ReadUvarint(s.r)
		if err != nil {
			return 0, err
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(s.r, message); err != nil {
			return 0, err
		}
		s.pending.Reset(keepertest.Delimited(s.in(message)))
	}
	return s.pending.Read(b)
}

// rewrite returns a function that decodes a message, edits it and encodes it.
func rewrite[M proto.Message](kind M, edit func(M)) func([]byte) []byte {
	return func(b []byte) []byte {
		m := kind.ProtoReflect().New().Interface().(M)
		if proto.Unmarshal(b, m) != nil {
			return b
		}
		edit(m)
		b, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		return b
	}
}

// queryOf returns the query of a request; nil without one.
func queryOf(m *pb.Request) *dpb.Query {
	return m.GetQuery().GetQuery()
}

func sendLater(m *pb.Request) {
	m.ProtoReflect().SetUnknown(keepertest.UnknownField(strictproto.OptionalFrom, "a hint"))
	if q := queryOf(m); q != nil {
		if value, ok := q.Attributes[laterFilter]; ok {
			delete(q.Attributes, laterFilter)
			q.ProtoReflect().SetUnknown(keepertest.UnknownField(laterField, value))
		}
	}
}

func serveLater(m *pb.Request) {
	m.ProtoReflect().SetUnknown(nil)
	q := queryOf(m)
	if q == nil {
		return
	}
	if b := q.ProtoReflect().GetUnknown(); len(b) > 0 {
		_, _, n := protowire.ConsumeTag(b)
		value, _ := protowire.ConsumeString(b[n:])
		if q.Attributes == nil {
			q.Attributes = make(map[string]string)
		}
		q.Attributes[laterFilter] = value
		q.ProtoReflect().SetUnknown(nil)
	}
}

func answerLater(m *pb.Response) { addEverywhere(m.ProtoReflect()) }

// addEverywhere adds an unknown field to a message and to all messages in it.
func addEverywhere(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := range v.List().Len() {
				addEverywhere(v.List().Get(i).Message())
			}
		default:
			addEverywhere(v.Message())
		}
		return true
	})
	m.SetUnknown(keepertest.UnknownField(777, "of a later version"))
}

// receiveLater gives the later version's name for field 900 in refusals.
func receiveLater(m *pb.Response) {
	for i, path := range m.GetRefusal().GetUnknown() {
		if path == fmt.Sprintf("query.query.%d", laterField) {
			m.Refusal.Unknown[i] = "query.query.attributes"
		}
	}
}

// makeLater lets a peer of a test be of the later version.
func makeLater(c *protocol.Config) { c.Host = laterHost{c.Host} }

func tagged(value string) func(*records.Offer) {
	return func(o *records.Offer) { o.Metadata.Attributes = map[string]string{laterFilter: value} }
}

// Peers of two versions keep one set of records. Each finds what it asks for: a filter of the later version
// is applied by the asker where the keeper does not know it. No peer distrusts another.
func TestMixedNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		isLater := func(i int) bool { return i%3 != 0 } // so that some cells have few keepers of today
		w := newCluster(t, 24, func(i int, c *protocol.Config) {
			if isLater(i) {
				makeLater(c)
			}
		})
		p, now := keepertest.NewProvider(t), time.Now()
		var recs, want []*records.Record
		for i := range 30 {
			value := []string{"yes", "no", "maybe"}[i%3]
			r := p.Sign(t, keepertest.Offer(fmt.Sprintf("s%03d", i), keepertest.Priced(float64(i)), tagged(value)), 1, now)
			recs = append(recs, r)
			if value == "yes" {
				want = append(want, r)
			}
		}
		for i, r := range recs {
			o := w.nodes[i%len(w.nodes)].Store(t.Context(), []*records.Record{r})[0]
			require.NoError(t, o.Err)
			require.Equal(t, o.Stored.Of, o.Stored.On)
		}
		filtered := keepertest.Around(10)
		filtered.Attributes, filtered.Limit = map[string]string{laterFilter: "yes"}, 4
		all := keepertest.Around(10)
		for _, n := range w.nodes {
			found, err := n.Query(t.Context(), keepertest.Compile(t, all))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Equal(t, keepertest.NamesOf(recs), keepertest.NamesOf(found.Records))

			found, err = n.Query(t.Context(), keepertest.Compile(t, filtered))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Equal(t, keepertest.NamesOf(want[:4]), keepertest.NamesOf(found.Records)[:4])
			for _, r := range found.Records {
				require.True(t, keepertest.Compile(t, filtered).Match(r))
			}
			got, err := n.Resolve(t.Context(), recs[7].Key())
			require.NoError(t, err)
			require.Equal(t, recs[7].Digest(), got.Digest())
			n.sync.Round(t.Context())
		}
		widened := 0
		for i, n := range w.nodes {
			require.Empty(t, n.counts.Distrust(), "node %d", i)
			asked := n.counts.Lacks()["query.query.attributes"]
			require.True(t, asked == 0 || isLater(i), "today's version knows all that it asks for")
			widened += asked
		}
		require.Positive(t, widened, "no later peer asked a keeper of today")
	})
}

// Keepers that do not know a part of a query which is no filter cannot be asked. The answer names it, and
// says how many keepers lack it.
func TestUnknownOrderIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4)
		a := w.nodes[0]
		a.Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), 5, time.Now()))
		for _, n := range w.nodes[1:] {
			n.corrupt(func(*pb.Request) *pb.Response {
				return &pb.Response{Refusal: &peerv1.Refusal{Code: peerv1.Code_CODE_UNSUPPORTED, Unknown: []string{"query.query.sort"}}}
			})
			n.cut()
		}
		found, err := a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.Len(t, found.Records, 5)
		require.False(t, found.Complete)
		require.Contains(t, found.Reason, "1 of 2 keepers answered")
		require.Contains(t, found.Reason, "3 keepers of an older version do not know sort")
		require.Empty(t, a.counts.Distrust())
		require.Equal(t, 3, a.counts.Lacks()["query.query.sort"])
		for _, n := range w.nodes[1:] {
			require.False(t, a.client.Avoided(n.Self), "an older peer is as good as others for other questions")
		}
	})
}

// A request of a later version is refused with the numbers of its fields, and the stream goes on.
func TestRequestOfALaterVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2)
		s, err := w.nodes[0].client.Pool.(*rpc.Pool).Open(t.Context(), w.nodes[1].Self)
		require.NoError(t, err)
		defer func() { _ = s.Reset() }()
		call := func(edit func(*pb.Request)) *pb.Response {
			q := queries.Proto(keepertest.Compile(t, query.Query{}).Query())
			req := &pb.Request{Op: &pb.Request_Query{Query: &pb.QueryRequest{Query: q, Cells: []string{"/blackhole/services/compute/_/global"}}}}
			edit(req)
			require.NoError(t, s.WriteMessage(req))
			resp := new(pb.Response)
			require.NoError(t, s.ReadMessage(resp))
			return resp
		}
		resp := call(func(m *pb.Request) {
			queryOf(m).ProtoReflect().SetUnknown(keepertest.UnknownField(laterField, "yes"))
			queryOf(m).Sort = 99
		})
		require.Equal(t, peerv1.Code_CODE_UNSUPPORTED, resp.Refusal.GetCode())
		require.Equal(t, []string{"query.query.900", "query.query.sort"}, resp.Refusal.Unknown)
		require.NotZero(t, resp.TimeMs)
		resp = call(func(m *pb.Request) { m.ProtoReflect().SetUnknown(keepertest.UnknownField(1500, "a hint")) })
		require.Nil(t, resp.Refusal)
		require.NotNil(t, resp.GetQuery())
		resp = call(func(m *pb.Request) {
			m.Op = nil
			m.ProtoReflect().SetUnknown(keepertest.UnknownField(99, "an operation"))
		})
		require.Equal(t, []string{"99"}, resp.Refusal.GetUnknown())
		require.Equal(t, 2, w.nodes[1].counts.Refusals("unsupported"))
		require.Zero(t, w.nodes[1].counts.Refusals("malformed"))
	})
}

// An answer in a form that this version does not know is no lie.
func TestResponseOfALaterVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4)
		a := w.nodes[0]
		a.Store(t.Context(), keepertest.Batch(t, keepertest.NewProvider(t), 5, time.Now()))
		odd := w.node(a.askingOrder(keep.NewSet(w.dht.peers, nil))[1])
		odd.corrupt(func(*pb.Request) *pb.Response {
			m := new(pb.Response)
			m.ProtoReflect().SetUnknown(keepertest.UnknownField(99, "a response of a later version"))
			return m
		})
		odd.cut()
		found, err := a.Query(t.Context(), keepertest.Compile(t, keepertest.Around(10)))
		require.NoError(t, err)
		require.True(t, found.Complete, found.Reason)
		require.Len(t, found.Records, 5)
		require.Empty(t, a.counts.Distrust())
	})
}

// Older keepers with more matches of the wider query than fit into an answer: the records at hand are right, and
// the answer says which filter they do not know.
func TestOlderKeepersWithTooManyMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4)
		a, p := w.nodes[0], keepertest.NewProvider(t)
		some := [][]byte{p.Sign(t, keepertest.Offer("yes", tagged("yes")), 1, time.Now()).Envelope()}
		for i := len(some); i < queries.MaxLimit; i++ {
			some = append(some, p.Sign(t, keepertest.Offer(fmt.Sprintf("no%d", i), tagged("no")), 1, time.Now()).Envelope())
		}
		for _, n := range w.nodes[1:] {
			n.corrupt(func(req *pb.Request) *pb.Response {
				q := queryOf(req)
				if q == nil {
					return nil
				}
				if len(q.Attributes) > 0 {
					return &pb.Response{Refusal: rpc.Refuse(strictproto.Refuse([]string{"query.query.17"}))}
				}
				require.EqualValues(t, queries.MaxLimit, q.Limit)
				return queried(&pb.QueryResponse{Envelopes: some, Total: 9000, Withheld: true, Bound: 1})
			})
			n.cut()
		}
		q := keepertest.Around(10)
		q.Attributes = map[string]string{laterFilter: "yes"}
		found, err := a.Query(t.Context(), keepertest.Compile(t, q))
		require.NoError(t, err)
		require.Equal(t, []string{"yes"}, keepertest.NamesOf(found.Records))
		require.False(t, found.Complete)
		require.True(t, found.AtLeast)
		require.Contains(t, found.Reason, "3 keepers of an older version do not know attributes")
		require.Empty(t, a.counts.Distrust())
	})
}
