// Command consumer finds storage near San Francisco through the local peer and selects the
// best offer, or follows the offers there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func main() {
	grpc := flag.String("grpc", client.DefaultAddress, "gRPC `address` of the local peer")
	watch := flag.Bool("watch", false, "follow changes until interrupted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := consume(ctx, *grpc, *watch); err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

func consume(ctx context.Context, grpc string, watch bool) error {
	c, err := client.New(grpc)
	if err != nil {
		return err
	}
	defer c.Close()
	if watch {
		return follow(ctx, c)
	}
	answer, err := c.Offers().Query(ctx, wanted())
	if err != nil {
		return err
	}
	show(answer)
	return nil
}

// wanted asks for at least 1 TB of SSD storage within 50 km of San Francisco, with an uptime
// of at least 99 %, for at most 0.06 USDC per GB and month, cheapest first.
func wanted() query.Query {
	return query.Query{
		Type:     "storage",
		Subtype:  "ssd",
		Near:     &query.Near{Latitude: 37.7749, Longitude: -122.4194, RadiusKM: new(50.0)},
		Capacity: query.Capacity{MinStorageGB: 1000},
		Price:    query.Price{MaxPrice: new(0.06), Currency: "USDC", PriceUnit: "per-gb-month"},
		Quality:  query.Quality{MinUptime: new(99.0)},
		Sort:     query.SortPrice,
		Limit:    10,
	}
}

// show prints the results and selects the first, which is the best.
func show(answer query.AnswerView) {
	fmt.Printf("Found %d storage services (%s, %.1f ms):\n", answer.Total, answer.Source, answer.TookMs)
	if !answer.Complete {
		fmt.Printf("Results may be missing: %s\n", answer.Reason)
	}
	for i, r := range answer.Results {
		// The filters of the query guarantee place, space, price and uptime. Only the response
		// time may be missing.
		svc := r.Record
		fmt.Printf("\n%d. %s (ID: %s)\n", i+1, svc.Metadata.Name, svc.ID)
		fmt.Printf("   Type: %s/%s\n", svc.Metadata.Type, svc.Metadata.Subtype)
		fmt.Printf("   Provider: %s\n", svc.ProviderID)
		fmt.Printf("   Location: %s, %s, %.1f km away\n", svc.Location.City, svc.Location.Country, *r.DistanceKM)
		fmt.Printf("   Available: %.2f TB\n", float64(svc.Capabilities.Storage.AvailableSpace)/1e12)
		fmt.Printf("   Price: %.3f %s %s\n", *svc.Pricing.BasePrice, svc.Pricing.Currency, svc.Pricing.PriceUnit)
		fmt.Printf("   Uptime: %.2f%%\n", *svc.Health.UptimePercent)
		if ms := svc.Health.ResponseTimeMs; ms != nil {
			fmt.Printf("   Response: %d ms\n", *ms)
		}
		fmt.Printf("   Endpoints: %s\n", strings.Join(svc.Metadata.Endpoints, ", "))
	}
	if len(answer.Results) > 0 {
		connect(answer.Results[0].Record)
	}
}

// connect stands for the real work with the service.
func connect(svc records.View) {
	fmt.Printf("\nSelected service: %s\n", svc.ID)
	if len(svc.Metadata.Endpoints) == 0 {
		fmt.Println("The service has no endpoint.")
		return
	}
	fmt.Printf("Would connect to %s by %s\n", svc.Metadata.Endpoints[0], strings.Join(svc.Metadata.Protocols, " or "))
}

// follow prints the current results of the query, and then every change.
func follow(ctx context.Context, c *client.Client) error {
	q := wanted()
	q.Sort, q.Limit = "", 0 // a watch sends all matches
	w, err := c.Offers().Watch(ctx, q, "")
	if err != nil {
		return err
	}
	for {
		ev, err := w.Next()
		switch {
		case errors.Is(err, fault.Canceled) && ctx.Err() != nil:
			return nil
		case err != nil:
			return err // a real program would watch again with the Cursor of the last event
		case ev.Record != nil:
			fmt.Printf("%-9s %s of %s, sequence %d\n", ev.Kind, ev.Record.ID, ev.Record.ProviderID, ev.Record.Sequence)
		}
	}
}
