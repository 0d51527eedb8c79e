package index_test

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/blackhole/blackhole/internal/discovery/index"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Query the records of one provider by price.
func Example() {
	key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		fmt.Println(err)
		return
	}
	x, now := index.New(index.Config{}), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for id, price := range map[string]float64{"large": 0.5, "small": 0.1, "medium": 0.25} {
		r, err := records.Sign("test", key, records.Offer{
			ID:           id,
			Metadata:     records.Metadata{Type: "compute"},
			Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8}},
			Pricing:      &records.Pricing{Currency: "USDC", PriceUnit: "per-hour", BasePrice: &price},
		}, records.Stamp{Sequence: 1, Issued: now, Expires: now.Add(time.Hour)})
		if err != nil {
			fmt.Println(err)
			return
		}
		if _, err := x.Put(r, now); err != nil {
			fmt.Println(err)
			return
		}
	}
	plan, err := queries.Compile(query.Query{Type: "compute", Sort: query.SortPrice, Limit: 2}, queries.Defaults{})
	if err != nil {
		fmt.Println(err)
		return
	}
	found := x.Search(plan, index.SearchOptions{Now: now})
	for _, hit := range found.Hits {
		fmt.Println(hit.Record.Name().ID, hit.Value)
	}
	fmt.Println("of", found.Total, "and then", found.Next)
	// Output:
	// small 0.1
	// medium 0.25
	// of 3 and then 0.5
}
