package keeper

import (
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/keepertest"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// requireTrust requires that no node of a cluster distrusts another.
func (w *cluster) requireTrust() {
	w.t.Helper()
	for _, n := range w.nodes {
		require.Empty(w.t, n.counts.Distrust(), "%s distrusts an honest keeper", n.Self)
	}
}

// Records of a later version reach every reader byte for byte, by STORE, by comparisons, by queries and by resolution.
func TestUnknownFieldsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 4, never)
		p := keepertest.NewProvider(t)
		stored := p.Later(t, "stored", 1)
		o := w.nodes[0].Store(t.Context(), []*records.Record{stored})[0]
		require.NoError(t, o.Err)
		require.Equal(t, records.Stored{On: 4, Of: 4}, o.Stored)
		for _, n := range w.nodes {
			require.Equal(t, stored.Envelope(), mustGet(t, n, stored).Envelope(), "store")
		}

		pulled := p.Later(t, "pulled", 1)
		w.nodes[0].put(t, pulled)
		w.nodes[1].sync.Round(t.Context())
		require.Equal(t, pulled.Envelope(), mustGet(t, w.nodes[1], pulled).Envelope(), "sync")

		got, err := w.nodes[2].Resolve(t.Context(), pulled.Key())
		require.NoError(t, err)
		require.Equal(t, pulled.Envelope(), got.Envelope(), "resolve")
		w.requireTrust()
	})
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 30)
		r := keepertest.NewProvider(t).Later(t, "one", 1)
		require.NoError(t, w.nodes[0].Store(t.Context(), []*records.Record{r})[0].Err)
		for _, n := range w.nodes {
			found, err := n.Query(t.Context(), keepertest.Compile(t, query.Query{}))
			require.NoError(t, err)
			require.True(t, found.Complete, found.Reason)
			require.Len(t, found.Records, 1)
			require.Equal(t, r.Envelope(), found.Records[0].Envelope(), "query")
		}
		w.requireTrust()
	})
}

// A record that needs a feature of a later version is stored, compared and served like any other. Answers leave it out,
// with the earlier version that it replaced, and say so. Nobody is blamed.
func TestCriticalFeatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{4, 30} {
			if size > 4 && os.Getenv("TEST_LONG") == "" {
				continue
			}
			w := newCluster(t, size)
			p := keepertest.NewProvider(t)
			plain := p.Sign(t, keepertest.Offer("plain"), 1, time.Now())
			first := p.Sign(t, keepertest.Offer("one"), 1, time.Now())
			critical := p.Later(t, "one", 2, recordstest.Needs(keepertest.Feature))
			for _, r := range []*records.Record{plain, first, critical} {
				require.NoError(t, w.nodes[0].Store(t.Context(), []*records.Record{r})[0].Err)
			}
			for _, c := range critical.Cells() {
				for _, n := range w.keepersOf(c) {
					require.Equal(t, critical.Envelope(), mustGet(t, n, critical).Envelope())
				}
			}
			for _, n := range w.nodes {
				for _, q := range []query.Query{{}, keepertest.Around(10), {ProviderID: p.Id.String()}} {
					found, err := n.Query(t.Context(), keepertest.Compile(t, q))
					require.NoError(t, err)
					require.Equal(t, []string{"plain"}, keepertest.NamesOf(found.Records))
					require.Equal(t, 1, found.Total)
					require.True(t, found.Complete, found.Reason)
					require.Equal(t, &query.LeftOut{Records: 1, Features: []string{keepertest.Feature}}, found.Beyond)
				}
				_, err := n.Resolve(t.Context(), critical.Key())
				require.ErrorIs(t, err, fault.Unsupported)
				require.ErrorContains(t, err, keepertest.Feature)
				elsewhere := keepertest.Around(10)
				elsewhere.Near.Latitude = -52
				found, err := n.Query(t.Context(), keepertest.Compile(t, elsewhere))
				require.NoError(t, err)
				require.Nil(t, found.Beyond, "the place is part of the core")
			}
			w.requireTrust()
		}
	})
}

func TestCriticalFeaturesCrossComparisons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 3, never)
		r := keepertest.NewProvider(t).Later(t, "one", 1, recordstest.Needs(keepertest.Feature))
		w.nodes[0].put(t, r)
		w.nodes[1].sync.Round(t.Context())
		require.Equal(t, r.Envelope(), mustGet(t, w.nodes[1], r).Envelope())
		w.requireTrust()
	})
}

// A keeper answers a pull with a record that this peer cannot read: it is not pulled again for a while.
func TestUnreadableRecordsAreNotPulledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t, 2, never)
		a, b := w.nodes[0], w.nodes[1]
		p := keepertest.NewProvider(t)
		r, other := p.Sign(t, keepertest.Offer("one"), 1, time.Now()), p.Sign(t, keepertest.Offer("two"), 1, time.Now())
		major := recordstest.Seal(t, p.Key, recordstest.Record("test", 2, []byte("?")))
		pulls := 0
		var entries []byte
		for _, r := range []*records.Record{r, other} {
			entries = digest.Append(entries, protocol.EntryOf(r, p.Id.String()))
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
			_, err := a.sync.Compare(t.Context(), b.Self, a.sync.Table())
			require.NoError(t, err)
		}
		require.Equal(t, 1, pulls)
		require.Equal(t, other.Envelope(), mustGet(t, a, other).Envelope())
		require.Equal(t, 1, a.counts.Refusals("unsupported"))
		w.requireTrust()
	})
}
