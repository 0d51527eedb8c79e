package cell

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/pkg/records"
)

// ProviderCounter counts the records of a cell by provider and address prefix. The zero value is
// empty.
type ProviderCounter struct {
	unknown   int // records with an unknown prefix
	providers map[peer.ID]int
	prefixes  map[netip.Prefix]int
}

// Add counts a record. The zero prefix means unknown.
func (c *ProviderCounter) Add(provider peer.ID, prefix netip.Prefix) {
	if c.providers == nil {
		c.providers, c.prefixes = make(map[peer.ID]int), make(map[netip.Prefix]int)
	}
	c.providers[provider]++
	if prefix.IsValid() {
		c.prefixes[prefix]++
	} else {
		c.unknown++
	}
}

// Of returns the numbers of records of a provider and of a prefix.
func (c *ProviderCounter) Of(provider peer.ID, prefix netip.Prefix) (ofProvider, ofPrefix int) {
	return c.providers[provider], c.prefixes[prefix]
}

// Fair returns the number of records with at most ProviderShare per provider and PrefixShare per
// prefix. One prefix can have many providers, and one provider many prefixes: the lower of the two
// counts applies.
func (c *ProviderCounter) Fair() int {
	byProvider, byPrefix := 0, c.unknown
	for _, n := range c.providers {
		byProvider += min(n, ProviderShare)
	}
	for _, n := range c.prefixes {
		byPrefix += min(n, PrefixShare)
	}
	return min(byProvider, byPrefix)
}

// Surplus returns the records to drop from a cell for a maximum of most records: those of highest
// rank from the largest buckets (prefixes, and providers with an unknown prefix), so that no
// bucket loses a record while another has more (max-min fairness). The result does not depend on
// the order of members.
func Surplus(members []Member, most int) []records.Name {
	if len(members) <= most {
		return nil
	}
	groups := make(map[quotaBucket][]ranked)
	for _, m := range members {
		x := ranked{Rank(m.Record.Name()), m.Record.Name(), bucketOf(m)}
		groups[x.bucket] = append(groups[x.bucket], x)
	}
	sizes := make([]int, 0, len(groups))
	for _, g := range groups {
		sizes = append(sizes, len(g))
	}
	level := levelOf(sizes, most)
	var out []ranked
	for _, g := range groups {
		if len(g) > level {
			slices.SortFunc(g, ranked.compare)
			out = append(out, g[level:]...)
		}
	}
	slices.SortFunc(out, ranked.compare)
	names := make([]records.Name, len(out))
	for i, x := range out {
		names[i] = x.name
	}
	return names
}

// levelOf returns the maximum per group for a total of most.
func levelOf(sizes []int, most int) int {
	slices.SortFunc(sizes, func(a, b int) int { return cmp.Compare(a, b) })
	left := most
	for i, n := range sizes {
		if even := left / (len(sizes) - i); n > even {
			return even
		}
		left -= n
	}
	return most
}
