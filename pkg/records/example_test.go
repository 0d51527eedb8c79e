package records_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func ExampleSign() {
	key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)))
	if err != nil {
		panic(err)
	}
	offers, err := records.ParseOffersYAML([]byte(`
id: exit-1
metadata: {type: bandwidth, subtype: wireguard}
capabilities: {bandwidth: {upload_mbps: 500, download_mbps: 1000}}
location: {latitude: 52.37, longitude: 4.89, country: NL}
`))
	if err != nil {
		panic(err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	signed, err := records.Sign("test", key, offers[0], records.Stamp{
		Sequence: records.NextSequence(0, now), Issued: now, Expires: now.Add(24 * time.Hour),
	})
	if err != nil {
		panic(err)
	}

	// Another peer has only the bytes:
	record, err := records.Open("test", signed.Envelope(), now)
	fmt.Println(record.Key(), err)
	_, err = records.Open("test", signed.Envelope(), now.Add(25*time.Hour))
	fmt.Println(fault.KindOf(err))

	// Output:
	// /blackhole/services/bandwidth/wireguard/u173zm/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5/exit-1 <nil>
	// conflict
}

func ExampleParseOffer() {
	_, err := records.ParseOffer([]byte(`{"id":"gpu-1","metadata":{"type":"compute"},"capabilities":{"compute":{"cpu_cores":-8}}}`))
	fmt.Println(err)

	// Output:
	// records.ParseOffer: capabilities.compute.cpu_cores: must be a whole number of 0 to 4294967295, not -8
}

// A file of offers, as `blackholed offer register -f` reads it.
func ExampleParseOffersYAML() {
	offers, err := records.ParseOffersYAML([]byte(`
- {id: store-1, metadata: {type: storage}, capabilities: {storage: {total_space: 5000000000000, available_space: 400000000000}}, location: {country: DE}}
- {id: edge-1, metadata: {type: cdn}, capabilities: {cdn: {bandwidth_mbps: 10000}}, location: {country: FJ}}
`))
	for _, o := range offers {
		fmt.Println(o.ID, o.Metadata.Type)
	}
	fmt.Println(err)

	// Output:
	// store-1 storage
	// edge-1 cdn
	// <nil>
}

// The key of a record names type, subtype, place, provider and id.
func ExampleParseKey() {
	key, err := records.ParseKey("/blackhole/services/compute/gpu/u33dbb/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5/my-gpu")
	fmt.Println(key.Type, key.Subtype, key.Name.ID, err)

	// Output: compute gpu my-gpu <nil>
}

// A provider publishes the centre of a cell instead of its exact place.
func ExampleOffer_Coarsen() {
	offers, err := records.ParseOffersYAML([]byte(`
{id: gpu-1, metadata: {type: compute}, capabilities: {compute: {cpu_cores: 8}}, location: {latitude: 52.5200, longitude: 13.4050, country: DE}}
`))
	if err != nil {
		panic(err)
	}
	coarse := offers[0].Coarsen(4)
	fmt.Printf("%.2f %.2f\n", *coarse.Location.Latitude, *coarse.Location.Longitude)

	// Output: 52.47 13.54
}
