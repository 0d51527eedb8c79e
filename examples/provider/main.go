// Command provider offers a storage service through the local peer until interrupted, and
// then withdraws it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func main() {
	grpc := flag.String("grpc", client.DefaultAddress, "gRPC `address` of the local peer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := provide(ctx, *grpc); err != nil {
		fmt.Fprintln(os.Stderr, "provider:", err)
		os.Exit(1)
	}
}

// provide registers the service and withdraws it after the end of ctx. In between, the peer
// renews the record by itself.
func provide(ctx context.Context, grpc string) error {
	c, err := client.New(grpc)
	if err != nil {
		return err
	}
	defer c.Close()

	o := offer()
	receipt, err := c.Offers().Register(ctx, o)
	if errors.Is(err, fault.Exists) { // left over from an earlier run
		receipt, err = c.Offers().Update(ctx, o)
	}
	if err != nil {
		return err
	}
	fmt.Printf("Service %s is registered.\n", receipt.ID)
	fmt.Printf("   Key: %s\n", receipt.Key)
	fmt.Printf("   Sequence: %d\n", receipt.Sequence)
	fmt.Printf("   Stored on %d of %d peers\n", receipt.Stored.On, receipt.Stored.Of)
	fmt.Printf("   Expires at %s unless renewed\n", receipt.ExpiresAt.Format(time.RFC3339))
	fmt.Println("Ctrl-C withdraws it.")

	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, err := c.Offers().Withdraw(ctx, receipt.ID); err != nil {
		return err
	}
	fmt.Printf("Service %s is withdrawn.\n", receipt.ID)
	return nil
}

// offer describes the service. Numbers are pointers, because a missing value means unknown,
// not zero.
func offer() records.Offer {
	return records.Offer{
		ID: "fast-ssd-storage",
		Metadata: records.Metadata{
			Type:        "storage",
			Subtype:     "ssd",
			Name:        "Fast SSD Storage",
			Description: "High-performance SSD storage with encryption",
			Version:     "1.0.0",
			Endpoints:   []string{"https://storage.example.com/api/v1"},
			Protocols:   []string{"s3", "ipfs"},
			Attributes:  map[string]string{"datacenter": "us-west-1", "tier": "premium"},
		},
		Capabilities: &records.Capabilities{Storage: &records.Storage{
			TotalSpace:          5_000_000_000_000, // 5 TB
			AvailableSpace:      4_500_000_000_000, // 4.5 TB
			MaxObjectSize:       5000,              // 5 GB
			StorageClasses:      []string{"hot", "cold"},
			EncryptionSupported: true,
			VersioningSupported: true,
		}},
		Location: &records.Location{
			Latitude:  new(37.7749),
			Longitude: new(-122.4194),
			Country:   "US",
			Region:    "California",
			City:      "San Francisco",
		},
		Pricing: &records.Pricing{
			Currency:    "USDC",
			BasePrice:   new(0.05),
			PriceUnit:   "per-gb-month",
			TierPricing: map[string]float64{"0-100": 0.05, "100-1000": 0.04, "1000+": 0.03},
		},
		Health: &records.Health{
			Status:         "HEALTHY",
			UptimePercent:  new(99.99),
			ResponseTimeMs: new(uint64(50)),
			ErrorRate:      new(uint32(1)), // per 10000 requests
		},
	}
}
