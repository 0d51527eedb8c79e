package httpapi

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// offerBrief is what appendOffer writes, in the form of the standard encoder.
type offerBrief struct {
	Key          string                `json:"key"`
	ID           string                `json:"id"`
	Provider     string                `json:"provider_id"`
	Type         string                `json:"type,omitempty"`
	Subtype      string                `json:"subtype,omitempty"`
	Name         string                `json:"name,omitempty"`
	Latitude     *float64              `json:"latitude,omitempty"`
	Longitude    *float64              `json:"longitude,omitempty"`
	Country      string                `json:"country,omitempty"`
	City         string                `json:"city,omitempty"`
	Price        *float64              `json:"price,omitempty"`
	Currency     string                `json:"currency,omitempty"`
	Unit         string                `json:"price_unit,omitempty"`
	Capabilities *records.Capabilities `json:"capabilities,omitempty"`
	Health       string                `json:"health,omitempty"`
	Sequence     uint64                `json:"sequence"`
	Issued       time.Time             `json:"updated_at"`
	Expires      time.Time             `json:"expires_at"`
}

func briefOf(r *records.Record) *offerBrief {
	name, s, f := r.Name(), r.Service(), r.Facts()
	b := &offerBrief{
		Key: r.Key().String(), ID: name.ID, Provider: name.Provider.String(), Type: r.Type(), Subtype: r.Subtype(), Name: s.GetMetadata().GetName(),
		Country: f.Country, City: s.GetLocation().GetCity(), Sequence: r.Sequence(), Issued: r.Issued(), Expires: r.Expires(),
		Capabilities: r.View().Capabilities,
	}
	if p, ok := f.Place(); ok {
		b.Latitude, b.Longitude = &p.Lat, &p.Lon
	}
	if f.Has(records.KnownPrice) {
		b.Price, b.Currency, b.Unit = &f.Price, f.Currency, f.PriceUnit
	}
	if h := s.GetHealth(); h != nil {
		b.Health = f.Status.String()
	}
	return b
}

// TestAppendOffer compares the short way with a decoder and the standard encoder.
func TestAppendOffer(t *testing.T) {
	key, _, err := crypto.GenerateEd25519Key(nil)
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "plain", `<b>"Zürich" & \ é`, "東京"})
		o := discoverytest.Offer(rapid.SampledFrom([]string{"a", "gpu-0.1_x"}).Draw(t, "id"))
		o.Metadata.Name = "n" + text.Draw(t, "name")
		o.Metadata.Subtype = rapid.SampledFrom([]string{"", "spot"}).Draw(t, "subtype")
		o.Metadata.Description = text.Draw(t, "description")
		if rapid.Bool().Draw(t, "priced") {
			price := rapid.Float64Range(0, 1e6).Draw(t, "price")
			o.Pricing = &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"}
		}
		if rapid.Bool().Draw(t, "placed") {
			lat, lon := rapid.Float64Range(-90, 90).Draw(t, "lat"), rapid.Float64Range(-180, 180).Draw(t, "lon")
			o.Location = &records.Location{Latitude: &lat, Longitude: &lon, City: text.Draw(t, "city"), Region: text.Draw(t, "region")}
		}
		r := signed(t, key, o)
		want, err := json.Marshal(briefOf(r))
		require.NoError(t, err)
		require.Equal(t, string(want), string(appendOffer(nil, r)))
	})
}

func signed(t require.TestingT, key crypto.PrivKey, o records.Offer) *records.Record {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	r, err := records.Sign(network.Default("dev"), key, o, records.Stamp{Sequence: 3, Created: now, Issued: now, Expires: now.Add(time.Hour)})
	require.NoError(t, err)
	return r
}

// TestOffersState: the offers of a state share events, each of a bounded size; later changes have events of their own.
func TestOffersState(t *testing.T) {
	key, _, err := crypto.GenerateEd25519Key(nil)
	require.NoError(t, err)
	r := signed(t, key, discoverytest.Offer("a", discoverytest.Priced(2)))
	var kinds []string
	offers := 0
	o := offerTeller{within: true, say: func(m message) error {
		var d struct {
			Kind   string
			Offers []offerBrief
		}
		require.NoError(t, json.Unmarshal(m.data, &d))
		require.Less(t, len(m.data), stateText+2*records.MaxSize)
		offers += len(d.Offers)
		if len(kinds) == 0 || kinds[len(kinds)-1] != d.Kind {
			kinds = append(kinds, d.Kind)
		}
		return nil
	}}
	const many = 500
	for range many {
		require.NoError(t, o.tell(discovery.Event{Kind: discovery.Added, Record: r}))
	}
	for _, ev := range []discovery.Event{
		{Kind: discovery.Progress, Cursor: "1"}, {Kind: discovery.Added, Record: r}, {Kind: discovery.Reset}, {Kind: discovery.Added, Record: r}, {Kind: discovery.Progress},
	} {
		require.NoError(t, o.tell(ev))
	}
	require.Equal(t, []string{"state", "progress", "added", "reset", "state", "progress"}, kinds)
	require.Equal(t, many+1, offers)
}

// TestSharedLines: viewers with the same batch get one line, others their own, and the last viewer leaves nothing behind.
func TestSharedLines(t *testing.T) {
	var s sharedLines
	leave := s.join()
	batch := func(id string, n int) instance.Batch {
		i := &instance.Instance{Key: paymentOf(id), Status: instance.StatusUp}
		b := instance.Batch{Index: 1}
		for range n {
			b.Events = append(b.Events, instance.Event{Type: instance.Modified, Instance: i, Revision: 1})
		}
		return b
	}
	require.Nil(t, s.of(instance.Batch{Index: 1}))
	a := batch("a", 1)
	first := s.of(a)
	require.Equal(t, new(sharedLines).serviceLine(a), first)
	require.Same(t, &first[0], &s.of(a)[0])
	all := a
	all.Reset = true
	require.Equal(t, new(sharedLines).serviceLine(all), s.of(all))
	require.Equal(t, new(sharedLines).serviceLine(batch("b", 1)), s.of(batch("b", 1)))
	for n := range 100 {
		s.of(batch(fmt.Sprint(n), maxShared/10))
		require.LessOrEqual(t, s.total, maxShared)
	}
	s.of(batch("large", 2*maxShared))
	require.Len(t, s.kept, 1)
	leave()
	require.Empty(t, s.kept)
}

// BenchmarkOffersState encodes the state of 20,000 offers.
func BenchmarkOffersState(b *testing.B) {
	key, _, err := crypto.GenerateEd25519Key(nil)
	require.NoError(b, err)
	r := signed(b, key, discoverytest.Offer("a", discoverytest.Priced(2), discoverytest.At(52.5, 13.4)))
	size := 0
	for b.Loop() {
		o := offerTeller{within: true, say: func(m message) error { size += len(m.data); return nil }}
		for range 20_000 {
			if err := o.tell(discovery.Event{Kind: discovery.Added, Record: r}); err != nil {
				b.Fatal(err)
			}
		}
		_ = o.flush()
	}
	b.ReportMetric(float64(size)/float64(b.N), "bytes/state")
}
