package offers_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/pkg/records"
)

// A caller's loop: announce the versions, report the outcome, fetch the due versions.
func Example() {
	key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)))
	if err != nil {
		panic(err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r, err := offers.Open(offers.Config{Network: "test", Dir: "/registry", FS: vfs.NewMem(), Key: key}, now)
	if err != nil {
		panic(err)
	}
	defer r.Close()
	handedOut, _ := r.Register([]records.Offer{{ID: "relay-1", Metadata: records.Metadata{Type: "relay"}}}, now)

	network := []records.Stored{{On: 7, Of: 10}, {On: 10, Of: 10}, {On: 10, Of: 10}} // outcomes of three announcements
	for _, outcome := range network {
		for _, v := range handedOut {
			fmt.Printf("%s %s, version of %s: %d of %d\n", now.Format(time.TimeOnly), v.Name().ID, v.Issued().Format(time.TimeOnly), outcome.On, outcome.Of)
			r.Announced(v.Name(), v.Sequence(), outcome, now)
		}
		now, _ = r.NextDue()
		handedOut = r.Due(now, 32)
	}
	// Output:
	// 12:00:00 relay-1, version of 12:00:00: 7 of 10
	// 12:00:01 relay-1, version of 12:00:00: 10 of 10
	// 18:00:00 relay-1, version of 18:00:00: 10 of 10
}
