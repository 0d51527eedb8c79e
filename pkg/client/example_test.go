package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/query"
)

// Finding the cheapest GPU within 500 km, and following what changes.
func Example() {
	c, err := client.New(client.DefaultAddress)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()

	km := 500.0
	q := query.Query{Type: "compute", Near: &query.Near{Latitude: 52.52, Longitude: 13.405, RadiusKM: &km}, Sort: query.SortPrice}
	q.RequireGPU = true
	answer, err := c.Query(ctx, q)
	switch {
	case errors.Is(err, discovery.ErrInvalidQuery): // the query's fault
	case err != nil: // the peer's or the network's
	case len(answer.Results) > 0:
		fmt.Println(answer.Results[0].Record.Metadata.Endpoints)
	}

	watch, err := c.Watch(ctx, q, "")
	if err != nil {
		return
	}
	for {
		ev, err := watch.Next()
		if err != nil {
			return // watch again, after the cursor of the last event
		}
		fmt.Println(ev.Kind, ev.Cursor)
	}
}
