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

// Find the cheapest GPU within 500 km, and follow changes.
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
	case errors.Is(err, discovery.ErrInvalidQuery): // an error in the query
	case err != nil: // an error of the peer or the network
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
			return // a real program watches again after the cursor of the last event
		}
		fmt.Println(ev.Kind, ev.Cursor)
	}
}

// Do work that must not run twice at the same time.
func ExampleSession_Lock() {
	c, err := client.New(client.DefaultAddress)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	session, err := c.Session(ctx, client.TTL(15*time.Second))
	if err != nil {
		return // no group was reachable
	}
	defer session.Close(ctx)

	held, err := session.Lock(ctx, "db/migrate", client.Wait(30*time.Second))
	switch {
	case errors.Is(err, client.ErrNotAcquired): // others held the lock all the time
		return
	case err != nil:
		return
	}
	defer held.Unlock(ctx)

	// The work ends with the lock, and the resource refuses old tokens.
	if err := migrate(held.Context(), held.Token()); errors.Is(context.Cause(held.Context()), client.ErrLost) {
		fmt.Println("another may have begun by now:", err)
	}
}

func migrate(context.Context, client.Token) error { return nil }

// Follow keys, and resume after a restart of this program.
func ExampleClient_Follow() {
	c, err := client.New(client.DefaultAddress)
	if err != nil {
		return
	}
	defer c.Close()
	next := client.Revision(1) // from storage
	for batch, err := range c.Follow(context.Background(), client.Watch{Span: client.Under("jobs/"), From: next}) {
		var past *client.Compacted
		switch {
		case errors.As(err, &past): // read all keys at past.Current, and follow from the next revision
			return
		case err != nil:
			return
		}
		for _, e := range batch.Events {
			fmt.Println(e.Revision, e.Key, e.Deletes())
		}
		next = batch.Next // store it together with the effects of the events
	}
}
