// Package market is the list of all offers in a testnet, with their providers. It computes the
// expected result of every search by looking at each offer.
//
// It is the simple version that checks the network: one slice, one loop, no index, no cells.
package market

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Listing is one registered offer.
type Listing struct {
	Offer    records.Offer
	Provider peer.ID
	Key      string // key of the record, from its receipt
	Down     bool   // its provider is stopped
}

// Name is the service's name in the network.
func (l Listing) Name() records.Name { return records.Name{Provider: l.Provider, ID: l.Offer.ID} }

// Type is the service's type.
func (l Listing) Type() string { return l.Offer.Metadata.Type }

// Country is the claimed country of the offer.
func (l Listing) Country() string { return l.Offer.Location.Country }

// Price is the base price.
func (l Listing) Price() float64 { return *l.Offer.Pricing.BasePrice }

// GPU reports whether the service has a graphics processor.
func (l Listing) GPU() bool {
	c := l.Offer.Capabilities.Compute
	return c != nil && len(c.GPUs) > 0
}

// Point is where the service is.
func (l Listing) Point() geo.Point {
	return geo.Point{Lat: *l.Offer.Location.Latitude, Lon: *l.Offer.Location.Longitude}
}

// Usable reports whether queries for usable services may return the offer: its provider runs and
// does not claim to be unhealthy.
func (l Listing) Usable() bool { return !l.Down && l.Offer.Health.Status != unhealthy }

// Market is the list of current offers. Methods are safe for concurrent use.
type Market struct {
	mu       sync.Mutex // guards listings
	listings []Listing
}

// Add lists a registered offer.
func (m *Market) Add(l Listing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listings = append(m.listings, l)
}

// Update replaces an offer.
func (m *Market) Update(provider peer.ID, o records.Offer) {
	m.change(func(l *Listing) {
		if l.Provider == provider && l.Offer.ID == o.ID {
			l.Offer = o
		}
	})
}

// Withdraw removes an offer.
func (m *Market) Withdraw(name records.Name) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listings = slices.DeleteFunc(m.listings, func(l Listing) bool { return l.Name() == name })
}

// Down marks a provider as stopped. Its offers stay listed.
func (m *Market) Down(provider peer.ID) {
	m.change(func(l *Listing) { l.Down = l.Down || l.Provider == provider })
}

func (m *Market) change(f func(*Listing)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.listings {
		f(&m.listings[i])
	}
}

// Where returns every listing accepted by keep, sorted by name.
func (m *Market) Where(keep func(Listing) bool) Selection {
	m.mu.Lock()
	defer m.mu.Unlock()
	var s Selection
	for _, l := range m.listings {
		if keep(l) {
			s = append(s, l)
		}
	}
	return s.By(func(Listing) float64 { return 0 })
}

// Selection is an ordered list of listings.
type Selection []Listing

// By sorts a selection by value, smallest first, ties by name.
func (s Selection) By(value func(Listing) float64) Selection {
	return slices.SortedFunc(slices.Values(s), func(a, b Listing) int {
		return cmp.Or(cmp.Compare(value(a), value(b)), a.Name().Compare(b.Name()))
	})
}

// First gives the first n listings, or fewer.
func (s Selection) First(n int) Selection { return s[:min(n, len(s))] }

// Kinds lists the types in the selection, sorted.
func (s Selection) Kinds() []string {
	var kinds []string
	for _, l := range s {
		kinds = append(kinds, l.Type())
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// DistanceKM measures from a place, for By and Where.
func DistanceKM(from geo.Point) func(Listing) float64 {
	return func(l Listing) float64 { return geo.Distance(from, l.Point()) / 1000 }
}

// Price is Listing.Price, for By.
func Price(l Listing) float64 { return l.Price() }

// Compare fails with Conflict at the first difference between an answer and the selection: same
// offers, same order.
func (s Selection) Compare(a query.AnswerView) error {
	const op = "market.Compare"
	for i, r := range a.Results {
		id, err := peer.Decode(r.Record.ProviderID)
		if err != nil {
			return fault.As(op, fault.Conflict, err)
		}
		got := records.Name{Provider: id, ID: r.Record.ID}
		if i >= len(s) {
			return fault.New(op, fault.Conflict, "unexpected result %[1]s at position %[2]d of %[3]d, expected %[4]d results%[5]s", got, i+1, len(a.Results), len(s), because(a))
		}
		if want := s[i].Name(); got != want {
			return fault.New(op, fault.Conflict, "result %d is %s, expected %s%s", i+1, got, want, because(a))
		}
	}
	if len(a.Results) < len(s) {
		return fault.New(op, fault.Conflict, "%d results, expected %d: the next is %s%s",
			len(a.Results), len(s), s[len(a.Results)].Name(), because(a))
	}
	return nil
}

// because returns what the peer itself says about a wrong answer: why it is not complete, and whom it left out.
func because(a query.AnswerView) string {
	text := fmt.Sprintf(" (complete: %t, from %s", a.Complete, a.Source)
	if !a.Complete {
		text += ": " + a.Reason
	}
	for _, e := range a.Excluded {
		text += fmt.Sprintf("; left out %s: %s", e.Provider, e.Reason)
	}
	return text + ")"
}
