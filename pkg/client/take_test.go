package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
	peerv1 "github.com/blackhole/blackhole/proto/blackhole/peer/v1"
)

// seller is an offer of eight units in a market, and how its provider behaves.
type seller struct {
	id     string
	by     string // provider; "": one of its own
	free   uint32
	share  uint32        // of one consumer
	price  float64       // now; all are found at 0.4 USDC
	money  string        // now
	silent bool          // gives no quote
	takes  time.Duration // to answer a reservation
	refuse error         // of a reservation
	fails  error         // of an extension
	keeps  bool          // a release is lost
}

// market is a peer with the offers of others.
type market struct {
	api.TradeServiceClient
	api.RecordServiceClient
	sellers []*seller

	mu     sync.Mutex // guards the fields below
	asked  *pb.Query
	log    []string // what reached the providers, in order
	busy   int      // reservations under way
	most   int      // of busy
	tokens map[uint64]*seller
	units  map[uint64]uint32 // by token: held or active
	active map[uint64]bool
}

func newMarket(sellers ...*seller) (*market, Offers) {
	m := &market{sellers: sellers, tokens: map[uint64]*seller{}, units: map[uint64]uint32{}, active: map[uint64]bool{}}
	for _, s := range sellers {
		s.price, s.share, s.money = cmp.Or(s.price, 0.4), cmp.Or(s.share, 8), cmp.Or(s.money, "USDC")
	}
	return m, Offers{&Client{records: m, trade: m}}
}

func (m *market) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *market) of(key string) *seller {
	return m.sellers[slices.IndexFunc(m.sellers, func(s *seller) bool { return "/k/"+s.id == key })]
}

func (m *market) Query(_ context.Context, r *api.QueryRequest, _ ...grpc.CallOption) (*api.QueryResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = r.GetQuery()
	a := &api.QueryResponse{Complete: true}
	price := 0.4
	a.Total = uint64(len(m.sellers))
	for _, s := range m.sellers[:min(int(cmp.Or(r.GetQuery().GetLimit(), 1000)), len(m.sellers))] {
		a.Results = append(a.Results, &api.QueryResult{Record: &api.Record{Key: "/k/" + s.id, Service: &pb.ServiceRecord{
			Id: s.id, ProviderId: cmp.Or(s.by, s.id), Sequence: 1, Pricing: &pb.PricingInfo{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"},
			Metadata: &pb.ServiceMetadata{Type: "compute", Stock: &pb.Stock{Unit: "gpu", Total: 8, MaxPerConsumer: s.share, MaxTtl: 600}},
		}}})
	}
	return a, nil
}

func (m *market) Quote(_ context.Context, r *api.QuoteRequest, _ ...grpc.CallOption) (*api.QuoteResponse, error) {
	a := &api.QuoteResponse{}
	for _, key := range r.GetKeys() {
		s := m.of(key)
		q := &api.Quote{Key: key, Sequence: 2, Free: s.free, Total: 8, Most: min(s.free, s.share), Price: &s.price, Currency: s.money, PriceUnit: "per-hour"}
		if s.silent {
			q = &api.Quote{Key: key, Refusal: &peerv1.Refusal{Code: peerv1.Code_CODE_TIMEOUT, Message: "silent"}}
		}
		a.Quotes = append(a.Quotes, q)
	}
	return a, nil
}

func (m *market) Reserve(ctx context.Context, r *api.ReserveRequest, _ ...grpc.CallOption) (*api.ReserveResponse, error) {
	s := m.of(r.GetKey())
	m.mu.Lock()
	m.note("hold %d of %s", r.GetUnits(), s.id)
	m.busy++
	m.most = max(m.most, m.busy)
	m.mu.Unlock()
	select {
	case <-time.After(max(s.takes, time.Millisecond*time.Duration(1+slices.Index(m.sellers, s)))):
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy--
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case s.refuse != nil:
		return nil, s.refuse
	case !r.GetHold():
		return nil, fault.New("", fault.Internal, "a unit that was not held first")
	case s.price > *r.MaxPrice:
		return nil, fault.Refused(fault.Conflict, "max_price", "is %v, and the price is %v", *r.MaxPrice, s.price)
	case r.GetUnits() > min(s.free, s.share):
		return nil, fault.Refused(fault.Conflict, "units", "asks for %d, and %d of 8 are free", r.GetUnits(), s.free)
	}
	s.free -= r.GetUnits()
	token := uint64(len(m.tokens) + 1)
	m.tokens[token], m.units[token] = s, r.GetUnits()
	return &api.ReserveResponse{Grant: &api.Grant{Token: token, Key: r.GetKey(), Units: r.GetUnits(), TtlMs: r.GetTtlMs(), State: api.Grant_STATE_HELD}}, nil
}

func (m *market) Extend(_ context.Context, r *api.ExtendRequest, _ ...grpc.CallOption) (*api.ExtendResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.tokens[r.GetToken()]
	m.note("confirm %d of %s", m.units[r.GetToken()], s.id)
	if s.fails != nil {
		return nil, s.fails
	}
	m.active[r.GetToken()] = true
	return &api.ExtendResponse{Grant: &api.Grant{Token: r.GetToken(), Key: "/k/" + s.id, Units: m.units[r.GetToken()], State: api.Grant_STATE_ACTIVE}}, nil
}

func (m *market) Release(ctx context.Context, r *api.ReleaseRequest, _ ...grpc.CallOption) (*api.ReleaseResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.tokens[r.GetToken()]
	m.note("give back %d of %s", m.units[r.GetToken()], s.id)
	if ctx.Err() != nil || s.keeps {
		return nil, fault.New("", fault.Unavailable, "lost")
	}
	s.free += m.units[r.GetToken()]
	delete(m.units, r.GetToken())
	return &api.ReleaseResponse{}, nil
}

// taken returns the units that the buyer has at each provider.
func (m *market) taken() map[string]uint32 {
	all := map[string]uint32{}
	for token, units := range m.units {
		all[m.tokens[token].id] += units
	}
	return all
}

func want(n uint32) Want { return Want{Units: n} }

// why lists the refusals of a take.
func why(t Taken) (all []string) {
	for _, r := range t.Refused {
		all = append(all, r.Key+": "+fault.Message(r.Err))
	}
	return all
}

// TestTake: units come from as few offers as can be, in rank order. Two candidates at a time hold them, and what is
// not needed goes back before the next two are asked.
func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, offers := newMarket(&seller{id: "a", free: 8}, &seller{id: "b", free: 8}, &seller{id: "c", free: 8})
		got, err := offers.Take(t.Context(), query.Query{Type: "compute"}, want(3))
		require.NoError(t, err)
		require.Equal(t, map[string]uint32{"a": 3}, m.taken())
		require.ElementsMatch(t, []string{"hold 3 of a", "hold 3 of b"}, m.log[:2])
		require.Equal(t, []string{"give back 3 of b", "confirm 3 of a"}, m.log[2:])
		require.Equal(t, "active", got.Grants[0].State)
		require.Empty(t, got.Refused)
		where := m.asked.GetWhere()
		require.Equal(t, "stock.total", where[len(where)-1].GetField(), "only offers with stock")

		// The first has two, so the second is asked again for what is left.
		m, offers = newMarket(&seller{id: "a", free: 2}, &seller{id: "b", free: 8}, &seller{id: "c", free: 8})
		_, err = offers.Take(t.Context(), query.Query{Type: "compute"}, want(4))
		require.NoError(t, err)
		require.Equal(t, map[string]uint32{"a": 2, "b": 2}, m.taken())
		require.Equal(t, 2, m.most, "two at a time")

		// All refuse but the last.
		no := fault.New("", fault.LimitReached, "too many of yours")
		m, offers = newMarket(&seller{id: "a"}, &seller{id: "b", free: 8, refuse: no}, &seller{id: "c", free: 8, price: 0.5},
			&seller{id: "d", free: 8, money: "BTC"}, &seller{id: "e", free: 1})
		got, err = offers.Take(t.Context(), query.Query{Type: "compute"}, want(1))
		require.NoError(t, err)
		require.Equal(t, map[string]uint32{"e": 1}, m.taken())
		require.Equal(t, []string{
			"/k/a: gives you 0 units now, not 1: 0 of 8 are free", "/k/d: costs 0.4 BTC per-hour by now", "/k/b: too many of yours", "/k/c: is 0.4, and the price is 0.5",
		}, why(got))
		dear := 0.6
		m, offers = newMarket(&seller{id: "c", free: 8, price: 0.5})
		_, err = offers.Take(t.Context(), query.Query{Type: "compute", Price: query.Price{MaxPrice: &dear}}, want(1))
		require.NoError(t, err, "the buyer said what it may cost")
		require.Equal(t, map[string]uint32{"c": 1}, m.taken())

		// A grant is no longer than the offer allows, and may stay held.
		m, offers = newMarket(&seller{id: "a", free: 8})
		got, err = offers.Take(t.Context(), query.Query{Type: "compute"}, Want{For: time.Hour, Hold: true})
		require.NoError(t, err)
		require.Equal(t, uint64(600_000), got.Grants[0].TTLMs)
		require.Empty(t, m.active)
	})
}

// TestTakeTooFew: with too few units all goes back, and each refusal is told.
func TestTakeTooFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, offers := newMarket(&seller{id: "a", free: 2}, &seller{id: "b"}, &seller{id: "c", free: 1})
		got, err := offers.Take(t.Context(), query.Query{Type: "compute"}, want(4))
		require.ErrorIs(t, err, fault.Conflict)
		require.ErrorContains(t, err, "3 of 4 units were to be had of 3 offers")
		require.Empty(t, m.taken())
		require.Empty(t, m.active)
		require.Empty(t, got.Grants)
		require.Len(t, got.Refused, 1)

		m, offers = newMarket(&seller{id: "a", free: 2}, &seller{id: "b", free: 2})
		_, err = offers.Take(t.Context(), query.Query{Type: "compute"}, Want{Units: 3, OneOffer: true})
		require.ErrorContains(t, err, "0 of 3 units were to be had of 2 offers")
		require.Empty(t, m.log, "nobody is asked for a part")

		_, offers = newMarket(&seller{id: "a", free: 2, keeps: true}, &seller{id: "b", free: 2})
		got, err = offers.Take(t.Context(), query.Query{Type: "compute"}, want(5))
		require.Error(t, err)
		require.Len(t, got.Kept, 1, "a provider did not hear that the units are not needed")
		require.Equal(t, "/k/a", got.Kept[0].Key)

		m, offers = newMarket(&seller{id: "a", free: 1}, &seller{id: "b", free: 1, fails: fault.Refused(fault.Conflict, "token", "another price")})
		_, err = offers.Take(t.Context(), query.Query{Type: "compute"}, want(2))
		require.ErrorContains(t, err, "another price")
		require.Empty(t, m.taken(), "what was confirmed already too")

		_, offers = newMarket()
		_, err = offers.Take(t.Context(), query.Query{Type: "compute"}, want(1))
		require.ErrorIs(t, err, fault.NotFound)
		_, err = offers.Take(t.Context(), query.Query{Type: "compute"}, Want{For: -1})
		require.Equal(t, "for", fault.FieldOf(err))
	})
}

// TestTakeOfSilentProviders: who does not say what is free is asked last, and is no reason to wait before.
func TestTakeOfSilentProviders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, offers := newMarket(&seller{id: "a", free: 8, silent: true}, &seller{id: "b", free: 8})
		_, err := offers.Take(t.Context(), query.Query{Type: "compute"}, want(1))
		require.NoError(t, err)
		require.Equal(t, map[string]uint32{"b": 1}, m.taken())
		m, offers = newMarket(&seller{id: "a", free: 8, silent: true}, &seller{id: "b"})
		_, err = offers.Take(t.Context(), query.Query{Type: "compute"}, want(1))
		require.NoError(t, err)
		require.Equal(t, map[string]uint32{"a": 1}, m.taken())
	})
}

// TestTakeBeyondSilentProviders: offers of providers that are gone fill the answer, as those of an attacker do. They do not count for its
// limit: further ones are asked for, each such provider is asked once, and without another one the purchase fails soon.
func TestTakeBeyondSilentProviders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, alive := range map[string][]*seller{"one lives": {{id: "b", free: 1}}, "none lives": nil} {
			var sellers []*seller
			for i := range 90 {
				sellers = append(sellers, &seller{id: fmt.Sprint("gone", i), by: fmt.Sprint("gone", i%3), free: 8, silent: true, takes: time.Hour})
			}
			m, offers := newMarket(append(sellers, alive...)...)
			start := time.Now()
			got, err := offers.Take(t.Context(), query.Query{Type: "compute", Limit: 10}, want(1))
			if len(alive) > 0 {
				require.NoError(t, err, name)
				require.Equal(t, map[string]uint32{"b": 1}, m.taken(), name)
				require.Empty(t, m.log[:len(m.log)-2], "nobody silent is asked for units")
			} else {
				require.ErrorIs(t, err, fault.Timeout, name)
				require.LessOrEqual(t, len(got.Refused), 4)
			}
			require.Less(t, time.Since(start), 25*time.Second, name)
		}
	})
}

// TestTakeBesideASilentProvider: who says what is free, and then gives no answer, is left for the next one, and keeps nobody from what
// another one holds. One that is only slower comes first if it ranks first.
func TestTakeBesideASilentProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			sellers []*seller
			want    map[string]uint32
			within  time.Duration
		}{
			"another one holds": {[]*seller{{id: "a", free: 1, takes: time.Hour}, {id: "b", free: 1}}, map[string]uint32{"b": 1}, 3 * time.Second},
			"another one has none": {[]*seller{{id: "a", free: 1, takes: time.Hour}, {id: "b", free: 1, refuse: fault.New("", fault.Conflict, "sold")},
				{id: "c", free: 1}}, map[string]uint32{"c": 1}, 13 * time.Second},
			"the first is slower": {[]*seller{{id: "a", free: 1, takes: time.Second}, {id: "b", free: 1}}, map[string]uint32{"a": 1}, 3 * time.Second},
		} {
			start := time.Now()
			m, offers := newMarket(tt.sellers...)
			got, err := offers.Take(t.Context(), query.Query{Type: "compute"}, want(1))
			require.NoError(t, err, name)
			require.Equal(t, tt.want, m.taken(), name)
			require.Less(t, time.Since(start), tt.within, name)
			if tt.sellers[0].takes > time.Minute {
				require.Equal(t, "/k/a: its provider gave no answer in time", why(got)[0], name)
			}
		}
	})
}

// TestTakeInterrupted: the end of the context gives back what is held, and so does the end of a hold that waits.
func TestTakeInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sellers := func() []*seller {
			return []*seller{{id: "a", free: 1}, {id: "b", free: 1}, {id: "c", free: 1, takes: time.Hour}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m, offers := newMarket(sellers()...)
		got, err := offers.Take(ctx, query.Query{Type: "compute"}, want(3))
		require.ErrorIs(t, err, fault.Timeout)
		require.ErrorContains(t, err, "2 of 3 units were to be had in time")
		require.Empty(t, m.taken())
		require.Empty(t, m.active)
		require.Len(t, got.Refused, 1)

		start := time.Now()
		m, offers = newMarket(sellers()...)
		_, err = offers.Take(t.Context(), query.Query{Type: "compute"}, want(3))
		require.ErrorIs(t, err, fault.Timeout)
		require.Less(t, time.Since(start), time.Minute, "before a hold ends")
		require.Empty(t, m.taken())
	})
}
