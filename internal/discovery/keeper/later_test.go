package keeper

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keeper/digest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/pkg/records/recordstest"
	dpb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const feature = "auction.v2" // of a later version

// later signs an offer as a later version of the program.
func (p provider) later(t testing.TB, id string, sequence uint64, edits ...func(*dpb.ServiceRecord)) *records.Record {
	t.Helper()
	return recordstest.Later(t, p.key, p.sign(t, offer(id), sequence, time.Now()), edits...)
}

// requireTrust requires that no node of a cluster distrusts another.
func (w *cluster) requireTrust() {
	w.t.Helper()
	for _, n := range w.nodes {
		n.counts.mu.Lock()
		require.Empty(w.t, n.counts.distrusted, "%s distrusts an honest keeper", n.Self)
		n.counts.mu.Unlock()
	}
}

// Records of a later version reach every reader byte for byte, by STORE, by comparisons, by queries, by resolution and
// by watches.
func TestUnknownFieldsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4, never)
		p := newProvider(t)
		stored := p.later(t, "stored", 1)
		o := w.nodes[0].Store(t.Context(), []*records.Record{stored})[0]
		require.NoError(t, o.Err)
		require.Equal(t, records.Stored{On: 4, Of: 4}, o.Stored)
		for _, n := range w.nodes {
			require.Equal(t, stored.Envelope(), mustGet(t, n, stored).Envelope(), "store")
		}

		pulled := p.later(t, "pulled", 1)
		w.nodes[0].put(t, pulled)
		w.nodes[1].sync.round(t.Context())
		require.Equal(t, pulled.Envelope(), mustGet(t, w.nodes[1], pulled).Envelope(), "sync")

		got, err := w.nodes[2].Resolve(t.Context(), pulled.Key())
		require.NoError(t, err)
		require.Equal(t, pulled.Envelope(), got.Envelope(), "resolve")
		w.requireTrust()
	})
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 30)
		r := newProvider(t).later(t, "one", 1)
		require.NoError(t, w.nodes[0].Store(t.Context(), []*records.Record{r})[0].Err)
		for _, n := range w.nodes {
			found, err := n.Query(t.Context(), compile(t, query.Query{}))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Len(t, found.Records, 1)
			require.Equal(t, r.Envelope(), found.Records[0].Envelope(), "query")
		}
		w.requireTrust()
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		r := newProvider(t).later(t, "one", 1)
		w.store(t, r)
		require.True(t, w.knows(r))
		require.Equal(t, r.Envelope(), mustGet(t, w.watcher, r).Envelope(), "watch")
		w.requireTrust()
	})
}

// A record that needs a feature of a later version is stored, compared and served like any other. Answers leave it out,
// with the earlier version that it replaced, and say so. Nobody is blamed.
func TestCriticalFeatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{4, 30} {
			w := newCluster(t, size)
			p := newProvider(t)
			plain := p.sign(t, offer("plain"), 1, time.Now())
			first := p.sign(t, offer("one"), 1, time.Now())
			critical := p.later(t, "one", 2, recordstest.Needs(feature))
			for _, r := range []*records.Record{plain, first, critical} {
				require.NoError(t, w.nodes[0].Store(t.Context(), []*records.Record{r})[0].Err)
			}
			for _, c := range critical.Cells() {
				for _, n := range w.keepersOf(c) {
					require.Equal(t, critical.Envelope(), mustGet(t, n, critical).Envelope())
				}
			}
			for _, n := range w.nodes {
				for _, q := range []query.Query{{}, around(10), {ProviderID: p.id.String()}} {
					found, err := n.Query(t.Context(), compile(t, q))
					require.NoError(t, err)
					require.Equal(t, []string{"plain"}, namesOf(found.Records))
					require.Equal(t, 1, found.Total)
					require.True(t, found.Complete, found.Reason)
					require.Equal(t, "1 records are left out, because they need a newer version of blackholed with "+feature, found.Beyond)
				}
				_, err := n.Resolve(t.Context(), critical.Key())
				require.ErrorIs(t, err, fault.Unsupported)
				require.ErrorContains(t, err, feature)
				elsewhere := around(10)
				elsewhere.Near.Latitude = -52
				found, err := n.Query(t.Context(), compile(t, elsewhere))
				require.NoError(t, err)
				require.Empty(t, found.Beyond, "the place is part of the core")
			}
			w.requireTrust()
		}
	})
}

func TestCriticalFeaturesCrossComparisonsAndWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, never)
		r := newProvider(t).later(t, "one", 1, recordstest.Needs(feature))
		w.nodes[0].put(t, r)
		w.nodes[1].sync.round(t.Context())
		require.Equal(t, r.Envelope(), mustGet(t, w.nodes[1], r).Envelope())
		w.requireTrust()
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		r := newProvider(t).later(t, "one", 1, recordstest.Needs(feature))
		w.store(t, r)
		require.True(t, w.knows(r), "the watcher may have the feature")
		w.requireTrust()
	})
}

// Versions that this peer cannot read, in any answer of a keeper, are left out without blame.
func TestUnreadableRecords(t *testing.T) {
	now := time.Now()
	p := newProvider(t)
	good := p.sign(t, offer("good"), 1, now)
	major := recordstest.Seal(t, p.key, recordstest.Record("test", 2, []byte("?")))
	unruly := good.Service()
	unruly.Signature, unruly.Sequence = nil, 0
	invalid := recordstest.Sign(t, "test", p.key, unruly)
	critical := p.later(t, "critical", 1, recordstest.Needs(feature))
	forged := slices.Clone(good.Envelope())
	forged[len(forged)-1] ^= 1
	plan := compile(t, query.Query{})
	q := cellQuery{plan: plan, cells: plan.Cells(1)}

	a, err := verifyAnswer(q, &pb.QueryResponse{Envelopes: [][]byte{good.Envelope(), major, invalid, critical.Envelope()}, Total: 4}, newVerifier(t), now)
	require.NoError(t, err)
	require.Equal(t, []*records.Record{good}, a.records)
	require.Equal(t, 1, a.total)
	require.Equal(t, 2, a.unread())
	require.Len(t, a.beyond, 1, "the keeper has the feature")

	a, err = verifyAnswer(q, &pb.QueryResponse{Beyond: [][]byte{good.Envelope(), major, critical.Envelope()}, MoreBeyond: true}, newVerifier(t), now)
	require.NoError(t, err)
	require.Equal(t, []*records.Record{good}, a.records, "this peer has the feature")
	require.Equal(t, 1, a.total)
	require.Equal(t, 1, a.unread())
	require.Len(t, a.beyond, 1)

	for _, resp := range []*pb.QueryResponse{{Envelopes: [][]byte{forged}}, {Beyond: [][]byte{forged}}, {Beyond: make([][]byte, maxBeyond+1)}} {
		_, err = verifyAnswer(q, resp, newVerifier(t), now)
		require.ErrorIs(t, err, fault.Unauthentic)
	}
}

// A keeper answers a pull with a record that this peer cannot read: it is not pulled again for a while.
func TestUnreadableRecordsAreNotPulledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, never)
		a, b := w.nodes[0], w.nodes[1]
		p := newProvider(t)
		r, other := p.sign(t, offer("one"), 1, time.Now()), p.sign(t, offer("two"), 1, time.Now())
		major := recordstest.Seal(t, p.key, recordstest.Record("test", 2, []byte("?")))
		pulls := 0
		var entries []byte
		for _, r := range []*records.Record{r, other} {
			entries = digest.Append(entries, digest.EntryOf(r, p.id.String()))
		}
		b.corrupt(func(req *pb.Request) *pb.Response {
			resp := answering(entries, []*records.Record{other})(req)
			if pull := resp.GetPull(); pull != nil {
				pulls++
				pull.Envelopes = slices.Insert(pull.Envelopes, 0, major)
			}
			return resp
		})
		for range 3 {
			_, err := a.sync.compare(t.Context(), b.Self, a.sync.table())
			require.NoError(t, err)
		}
		require.Equal(t, 1, pulls)
		require.Equal(t, other.Envelope(), mustGet(t, a, other).Envelope())
		require.Equal(t, 1, a.counts.of(a.counts.refused, "unsupported"))
		w.requireTrust()
	})
}
