package evidence

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// accused is a keeper that signs, and whose losses a test counts.
type accused struct {
	*Signer
	id   peer.ID
	lost uint64
}

func newAccused(t testing.TB) *accused {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	a := new(accused)
	a.id, err = peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	a.Signer = NewSigner("test", key, 5, func() uint64 { return a.lost })
	return a
}

// take gives receipts for records.
func (a *accused) take(t testing.TB, list ...*records.Record) []*pb.Omission {
	digests := make([][32]byte, len(list))
	for i, r := range list {
		digests[i] = r.Digest()
	}
	m, err := a.Receipt(func() [][32]byte { return digests })
	require.NoError(t, err)
	held, err := Held("test", a.id, m, digests)
	require.NoError(t, err)
	for i, h := range held {
		require.NoError(t, Covers("test", h, list[i]))
	}
	return held
}

func question(cell string) *pb.QueryRequest {
	return &pb.QueryRequest{Query: &dpb.Query{Type: "compute"}, Cells: []string{cell}}
}

// answer signs the answer to a question.
func (a *accused) answer(t testing.TB, req *pb.QueryRequest, given uint64, now time.Time, list ...*records.Record) *pb.QueryResponse {
	resp := new(pb.QueryResponse)
	for _, r := range list {
		resp.Envelopes = append(resp.Envelopes, r.Envelope())
	}
	require.NoError(t, a.Answer(req, resp, list, given, now))
	return resp
}

// TestMemory: a receipt and an answer prove an omission if the answer's search began after the receipt, and nothing was lost between.
func TestMemory(t *testing.T) {
	now := time.Now()
	p, a, opener := keepertest.NewProvider(t), newAccused(t), keepertest.NewVerifier(t)
	list := keepertest.Batch(t, p, 5, now)
	req := question(list[0].Cells()[0].String())
	judge := func(h *pb.Omission, r *records.Record, resp *pb.QueryResponse) error {
		m, err := Complete(h, r.Envelope(), req, resp.Signed)
		require.NoError(t, err)
		_, err = Open("test", m, opener, now)
		return err
	}
	before := a.Given()
	held := a.take(t, list...)
	require.NoError(t, judge(held[3], list[3], a.answer(t, req, a.Given(), now, list[0])))
	require.Equal(t, fault.Invalid, fault.KindOf(judge(held[3], list[2], a.answer(t, req, a.Given(), now))), "the receipt of another record")
	require.Equal(t, fault.Conflict, fault.KindOf(judge(held[3], list[3], a.answer(t, req, before, now))), "a search before the receipt")
	require.Equal(t, fault.Conflict, fault.KindOf(judge(held[0], list[0], a.answer(t, req, a.Given(), now, list[0]))), "it is listed")
	a.lost++
	require.Equal(t, fault.Conflict, fault.KindOf(judge(held[3], list[3], a.answer(t, req, a.Given(), now))), "something was lost")
	held = a.take(t, list...)
	require.NoError(t, judge(held[3], list[3], a.answer(t, req, a.Given(), now)))
	require.Equal(t, fault.Conflict, fault.KindOf(judge(held[3], list[3], a.answer(t, req, a.Given(), list[3].Expires().Add(-time.Minute)))), "it ends")
	old := a.answer(t, req, a.Given(), now.Add(-Life-time.Second))
	require.Equal(t, fault.Conflict, fault.KindOf(judge(held[3], list[3], old)), "the answer is old")
	require.NoError(t, judge(held[3], list[3], a.answer(t, req, a.Given(), now.Add(time.Second-Life))))
	m, err := a.Receipt(func() [][32]byte { return nil })
	require.NoError(t, err)
	require.Nil(t, m)
}

// TestCheck: an asker takes an answer only as its keeper signed it.
func TestCheck(t *testing.T) {
	now := time.Now()
	p, a := keepertest.NewProvider(t), newAccused(t)
	list := keepertest.Batch(t, p, 2, now)
	req := question(list[0].Cells()[0].String())
	good := func() *pb.QueryResponse { return a.answer(t, req, 0, now, list...) }
	require.NoError(t, Check("test", a.id, req, good(), list))
	require.Equal(t, fault.Unsupported, fault.KindOf(Check("test", a.id, req, new(pb.QueryResponse), nil)))
	require.Equal(t, fault.Unauthentic, fault.KindOf(Check("other", a.id, req, good(), list)))
	require.Equal(t, fault.Unauthentic, fault.KindOf(Check("test", newAccused(t).id, req, good(), list)))
	require.Equal(t, fault.Unauthentic, fault.KindOf(Check("test", a.id, question("x"), good(), list)))
	for name, change := range map[string]func(*pb.QueryResponse){
		"fewer records": func(r *pb.QueryResponse) { r.Envelopes = r.Envelopes[:1] },
		"withheld":      func(r *pb.QueryResponse) { r.Withheld = true },
		"bound":         func(r *pb.QueryResponse) { r.Bound = 1 },
		"not kept":      func(r *pb.QueryResponse) { r.NotKept = []string{"x"} },
		"split":         func(r *pb.QueryResponse) { r.Splits = []*pb.Split{{}} },
	} {
		resp := good()
		change(resp)
		require.Equal(t, fault.Unauthentic, fault.KindOf(Check("test", a.id, req, resp, list)), name)
	}
	swapped := good()
	swapped.Envelopes[1] = swapped.Envelopes[0]
	other := p.Sign(t, keepertest.Offer("other"), 1, now)
	require.Equal(t, fault.Unauthentic, fault.KindOf(Check("test", a.id, req, swapped, []*records.Record{list[0], other})))
}

// TestRefuted: a newer version that may have been known explains an omission. One from later does not.
func TestRefuted(t *testing.T) {
	now := time.Now()
	p := keepertest.NewProvider(t)
	r := p.Sign(t, keepertest.Offer("s"), 3, now)
	o := &Omission{Record: r, At: now.Add(time.Hour)}
	require.False(t, o.Refuted(nil))
	require.False(t, o.Refuted(r))
	require.False(t, o.Refuted(p.Sign(t, keepertest.Offer("s"), 2, now)))
	require.False(t, o.Refuted(p.Sign(t, keepertest.Offer("other"), 4, now)))
	require.True(t, o.Refuted(p.Sign(t, keepertest.Offer("s"), 4, now)))
	require.True(t, o.Refuted(p.Withdraw(t, r, now)))
	require.False(t, o.Refuted(p.Sign(t, keepertest.Offer("s"), 4, now.Add(time.Hour+2*skew))))
}

// TestPaths: each leaf of a tree of any size leads to its root, by a path within the bound, and no other digest does.
func TestPaths(t *testing.T) {
	_, ok := climb([32]byte{}, make([]byte, (MaxPath+1)*sizeStep))
	require.False(t, ok)
	_, ok = climb([32]byte{}, make([]byte, MaxPath*sizeStep))
	require.True(t, ok)
	for n := range 1000 {
		if n > 40 && n != 999 {
			continue
		}
		digests := make([][32]byte, n+1)
		for i := range digests {
			digests[i] = [32]byte{byte(i), byte(i >> 8), 1}
		}
		root, paths := tree(digests)
		for i, p := range paths {
			got, ok := climb(digests[i], p)
			require.True(t, ok)
			require.Equal(t, root, got)
			if got, ok = climb([32]byte{9, 9, 9}, p); ok {
				require.NotEqual(t, root, got)
			}
		}
	}
}

// BenchmarkAnswer is what evidence adds to an answer with 20 records: to sign it at a keeper, and to check it at an asker.
func BenchmarkAnswer(b *testing.B) {
	now := time.Now()
	a, list := newAccused(b), keepertest.Batch(b, keepertest.NewProvider(b), 20, time.Now())
	req := question(list[0].Cells()[0].String())
	resp := a.answer(b, req, 0, now, list...)
	b.Run("sign", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, a.Answer(req, resp, list, 0, now))
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, Check("test", a.id, req, resp, list))
		}
	})
	b.Logf("%d bytes of %d", len(resp.Signed.Terms)+len(resp.Signed.Signature), 20*len(list[0].Envelope()))
}
