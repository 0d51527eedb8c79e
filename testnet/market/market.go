// Package market is the list of all offers in a testnet, with their providers.
package market

import (
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/geo"
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
	slices.SortFunc(s, func(a, b Listing) int { return a.Name().Compare(b.Name()) })
	return s
}

// Selection is an ordered list of listings.
type Selection []Listing

// Kinds lists the types in the selection, sorted.
func (s Selection) Kinds() []string {
	var kinds []string
	for _, l := range s {
		kinds = append(kinds, l.Type())
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
