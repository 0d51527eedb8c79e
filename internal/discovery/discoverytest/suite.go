package discoverytest

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Open returns a form of the contract for a harness. Its resources end with the test.
type Open func(t testing.TB, h *Harness) API

// Run tests a form of the contract. It checks the kind, field and template of errors.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, API, *Harness){
		"register":             testRegister,
		"register refuses":     testRegisterRefuses,
		"register limit":       testRegisterLimit,
		"register batch":       testRegisterBatch,
		"register unreached":   testRegisterUnreached,
		"update":               testUpdate,
		"withdraw":             testWithdraw,
		"list":                 testList,
		"resolve":              testResolve,
		"query":                testQuery,
		"query explains":       testQueryExplains,
		"query where":          testQueryWhere,
		"query of types":       testQueryOfTypes,
		"pages":                testPages,
		"query groups prices":  testQueryGroupsPrices,
		"query counts cells":   testQueryCountsCells,
		"query with volume":    testQueryVolume,
		"query refuses":        testQueryRefuses,
		"query unanswered":     testQueryUnanswered,
		"watch":                testWatch,
		"watch resumes":        testWatchResumes,
		"watch refuses":        testWatchRefuses,
		"watch ends":           testWatchEnds,
		"canceled by the user": testCanceled,
	} {
		t.Run(name, func(t *testing.T) {
			h := New(t)
			test(t, open(t, h), h)
		})
	}
}

// refused checks the kind, the field and, unless nil, the template of an error.
func refused(t *testing.T, err error, kind fault.Kind, field string, template error) {
	t.Helper()
	require.ErrorIs(t, err, kind)
	require.Equal(t, field, fault.FieldOf(err), "%v", err)
	require.NotEmpty(t, fault.Message(err))
	if template != nil {
		require.ErrorIs(t, err, template)
	}
}

func compute(edits ...func(*query.Query)) query.Query {
	q := query.Query{Type: "compute"}
	for _, edit := range edits {
		edit(&q)
	}
	return q
}

func near(lat, lon, km float64) func(*query.Query) {
	return func(q *query.Query) { q.Near = &query.Near{Latitude: lat, Longitude: lon, RadiusKM: &km} }
}

func names(a query.AnswerView) (ids []string) {
	for _, r := range a.Results {
		ids = append(ids, r.Record.ID)
	}
	return ids
}

func testRegister(t *testing.T, api API, h *Harness) {
	began := h.Now()
	offer := Offer("a")
	receipt, err := api.Register(t.Context(), offer)
	require.NoError(t, err)
	require.Equal(t, "a", receipt.ID)
	require.Equal(t, records.Stored{On: 1, Of: 1}, receipt.Stored)
	require.Positive(t, receipt.Sequence)
	require.Greater(t, receipt.ExpiresAt.Sub(began), time.Hour)
	key, err := records.ParseKey(receipt.Key)
	require.NoError(t, err)
	require.Equal(t, "a", key.Name.ID)

	got, err := api.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, offer, got.Offer)
	require.Equal(t, key.Name.Provider.String(), got.ProviderID)
	require.Equal(t, receipt.Key, got.Key)
	require.Equal(t, receipt.Sequence, got.Sequence)
	require.True(t, got.ExpiresAt.Equal(receipt.ExpiresAt))
	require.NotEmpty(t, got.ContentID)
	require.NotEmpty(t, got.Signature)

	_, err = api.Register(t.Context(), offer)
	refused(t, err, fault.Exists, "id", discovery.ErrServiceExists)
	_, err = api.Get(t.Context(), "b")
	refused(t, err, fault.NotFound, "id", discovery.ErrNoServicesFound)
}

func testRegisterRefuses(t *testing.T, api API, _ *Harness) {
	huge := math.Inf(1)
	for field, c := range map[string]struct {
		edit     func(*records.Offer)
		template error
	}{
		"id":                         {func(o *records.Offer) { o.ID = "a/b" }, discovery.ErrInvalidService},
		"metadata.type":              {func(o *records.Offer) { o.Metadata.Type = "" }, discovery.ErrMissingMetadata},
		"metadata.subtype":           {func(o *records.Offer) { o.Metadata.Subtype = "A" }, discovery.ErrMissingMetadata},
		"capabilities.compute":       {func(o *records.Offer) { o.Capabilities = nil }, discovery.ErrInvalidCapabilities},
		"capabilities.storage":       {func(o *records.Offer) { o.Capabilities.Storage = &records.Storage{} }, discovery.ErrInvalidCapabilities},
		"location.latitude":          {At(91, 0), discovery.ErrInvalidLocation},
		"location.longitude":         {At(0, math.NaN()), discovery.ErrInvalidLocation},
		"pricing.base_price":         {Priced(-1), discovery.ErrInvalidPricing},
		"pricing.minimum_commitment": {func(o *records.Offer) { o.Pricing.MinimumCommitment = &huge }, discovery.ErrInvalidPricing},
		"health.status":              {func(o *records.Offer) { o.Health.Status = "GREAT" }, discovery.ErrInvalidService},
		"metadata.attributes":        {func(o *records.Offer) { o.Metadata.Attributes = map[string]string{"": "x"} }, nil},
		"location.precision":         {func(o *records.Offer) { o.Location.Precision = 99 }, nil},
		"capabilities.compute.gpus[0].model": {func(o *records.Offer) {
			o.Capabilities.Compute.GPUs = []records.GPU{{Model: "\x00"}}
		}, discovery.ErrInvalidCapabilities},
	} {
		_, err := api.Register(t.Context(), Offer("a", c.edit))
		refused(t, err, fault.Invalid, field, c.template)
		require.ErrorIs(t, err, discovery.ErrInvalidService, field)
		require.NotErrorIs(t, err, discovery.ErrInvalidQuery, field)
	}
	list, err := api.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list, "a refused offer changes nothing")
}

func testRegisterLimit(t *testing.T, api API, _ *Harness) {
	for i := range MaxServices {
		_, err := api.Register(t.Context(), Offer(string(rune('a'+i))))
		require.NoError(t, err)
	}
	_, err := api.Register(t.Context(), Offer("more"))
	require.ErrorIs(t, err, fault.LimitReached)
	require.ErrorIs(t, err, discovery.ErrProviderLimitReached)
}

func testRegisterBatch(t *testing.T, api API, _ *Harness) {
	out, err := api.RegisterBatch(t.Context(), []records.Offer{Offer("a"), Offer("b", At(-91, 0)), Offer("a"), Offer("c")})
	require.NoError(t, err)
	require.Len(t, out, 4)
	require.NoError(t, out[0].Err)
	require.Equal(t, "a", out[0].Receipt.ID)
	require.Equal(t, records.Stored{On: 1, Of: 1}, out[0].Receipt.Stored)
	refused(t, out[1].Err, fault.Invalid, "location.latitude", discovery.ErrInvalidLocation)
	require.ErrorIs(t, out[1].Err, discovery.ErrInvalidService)
	refused(t, out[2].Err, fault.Exists, "id", discovery.ErrServiceExists)
	require.Equal(t, "c", out[3].Receipt.ID)
	require.Zero(t, out[1].Receipt)

	_, err = api.RegisterBatch(t.Context(), nil)
	refused(t, err, fault.Invalid, "records", discovery.ErrInvalidService)
	_, err = api.RegisterBatch(t.Context(), make([]records.Offer, discovery.MaxBatch+1))
	refused(t, err, fault.Invalid, "records", discovery.ErrInvalidService)
}

// A peer without network contact accepts services and announces them later.
func testRegisterUnreached(t *testing.T, api API, h *Harness) {
	h.Network.Fail(fault.New("keeper.Store", fault.Unavailable, "no keeper answers"))
	receipt, err := api.Register(t.Context(), Offer("a"))
	require.NoError(t, err)
	require.Equal(t, records.Stored{On: 0, Of: 1}, receipt.Stored)
	_, err = api.Get(t.Context(), "a")
	require.NoError(t, err)
}

func testUpdate(t *testing.T, api API, _ *Harness) {
	_, err := api.Update(t.Context(), Offer("a"))
	refused(t, err, fault.NotFound, "id", discovery.ErrNoServicesFound)
	first, err := api.Register(t.Context(), Offer("a"))
	require.NoError(t, err)
	before, err := api.Get(t.Context(), "a")
	require.NoError(t, err)

	second, err := api.Update(t.Context(), Offer("a", Priced(2)))
	require.NoError(t, err)
	require.Greater(t, second.Sequence, first.Sequence)
	after, err := api.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, 2.0, *after.Pricing.BasePrice)
	require.True(t, after.CreatedAt.Equal(before.CreatedAt))

	_, err = api.Update(t.Context(), Offer("a", Priced(-1)))
	refused(t, err, fault.Invalid, "pricing.base_price", discovery.ErrInvalidPricing)
	unchanged, err := api.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, after, unchanged)
}

func testWithdraw(t *testing.T, api API, _ *Harness) {
	registered, err := api.Register(t.Context(), Offer("a"))
	require.NoError(t, err)
	withdrawn, err := api.Withdraw(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, registered.Key, withdrawn.Key)
	require.Greater(t, withdrawn.Sequence, registered.Sequence)
	require.Equal(t, records.Stored{On: 1, Of: 1}, withdrawn.Stored)

	_, err = api.Withdraw(t.Context(), "a")
	refused(t, err, fault.NotFound, "id", discovery.ErrNoServicesFound)
	_, err = api.Get(t.Context(), "a")
	refused(t, err, fault.NotFound, "id", discovery.ErrNoServicesFound)
	a, err := api.Query(t.Context(), compute())
	require.NoError(t, err)
	require.Empty(t, a.Results)
}

func testList(t *testing.T, api API, h *Harness) {
	h.Foreign(t, Offer("0"))
	for _, id := range []string{"c", "a", "b"} {
		_, err := api.Register(t.Context(), Offer(id))
		require.NoError(t, err)
	}
	_, err := api.Withdraw(t.Context(), "b")
	require.NoError(t, err)
	list, err := api.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	for i, id := range []string{"a", "c"} {
		one, err := api.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, one, list[i])
	}
}

func testResolve(t *testing.T, api API, h *Harness) {
	foreign := h.Foreign(t, Offer("f"))
	got, err := api.Resolve(t.Context(), foreign.Key().String())
	require.NoError(t, err)
	require.Equal(t, foreign.View(), got)

	for _, key := range []string{"", "nonsense", records.Namespace + "/compute/gpu/u33dc0/nobody/f"} {
		_, err = api.Resolve(t.Context(), key)
		refused(t, err, fault.Invalid, "key", nil)
	}
	unknown := foreign.Key()
	unknown.Name.ID = "other"
	_, err = api.Resolve(t.Context(), unknown.String())
	require.ErrorIs(t, err, discovery.ErrNoServicesFound)
}

// testCanceled: the end of a caller's context is Canceled, not a failure of the peer.
func testCanceled(t *testing.T, api API, _ *Harness) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("changed my mind"))
	_, err := api.Query(ctx, compute())
	require.ErrorIs(t, err, fault.Canceled)
}
