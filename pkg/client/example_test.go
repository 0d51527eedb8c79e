package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Offer a GPU, and find the cheapest one within 500 km, as any other peer does.
func ExampleClient_Offers() {
	address, stop := client.StartPeer()
	defer stop()
	c, err := client.New(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx, offers := context.Background(), c.Offers()
	receipt, err := offers.Register(ctx, records.Offer{
		ID: "gpu-1", Metadata: records.Metadata{Type: "compute", Subtype: "gpu", Name: "A GPU in Berlin"},
		Capabilities: &records.Capabilities{Compute: &records.Compute{
			GPUs: []records.GPU{{Model: "RTX 4090", MemoryMB: 24_000}},
		}},
		Location: &records.Location{Latitude: new(52.52), Longitude: new(13.4)},
		Pricing:  &records.Pricing{Currency: "USDC", BasePrice: new(0.4), PriceUnit: "per-hour"},
	})
	if err != nil {
		fmt.Println(err) // an error in the offer, or of the peer
		return
	}
	fmt.Println("offers", receipt.ID)

	prague := &query.Near{Latitude: 50.08, Longitude: 14.44, RadiusKM: new(500.0)}
	q := query.Query{Type: "compute", Near: prague, Sort: query.SortPrice}
	q.RequireGPU = true
	answer, err := offers.Query(ctx, q)
	switch {
	case errors.Is(err, fault.Invalid): // an error in the query
	case err != nil: // an error of the peer or the network
	}
	for _, r := range answer.Results {
		fmt.Println("found", r.Record.Metadata.Name, "at", *r.Record.Pricing.BasePrice)
	}

	watch, err := offers.Watch(ctx, q, "")
	if err != nil {
		return
	}
	ev, err := watch.Next()
	if err != nil {
		return // a real program watches again after the cursor of the last event
	}
	fmt.Println(ev.Kind, ev.Record.ID)

	// Output:
	// offers gpu-1
	// found A GPU in Berlin at 0.4
	// added gpu-1
}

// Do work that must not run twice at the same time. A program calls client.New("") for the peer of its host; the
// examples run against a peer in memory.
func ExampleClient_Locks() {
	address, stop := client.StartPeer()
	defer stop()
	c, err := client.New(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	session, err := c.Locks().Session(ctx, client.TTL(15*time.Second)) // a lease, kept alive
	if err != nil {
		fmt.Println(err) // no group was reachable
		return
	}
	defer session.Close(ctx)

	held, err := session.Lock(ctx, "db/migrate", client.Wait(30*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer held.Unlock(ctx)
	fmt.Println("holds", held.Name(), held.Token() > 0)

	// Output: holds db/migrate true
}

// Every holder has a greater token than all before, so a resource can refuse a late write.
func ExampleSession_Lock() {
	address, stop := client.StartPeer()
	defer stop()
	c, err := client.New(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	first, _ := c.Locks().Session(ctx)
	defer first.Close(ctx)
	second, _ := c.Locks().Session(ctx)
	defer second.Close(ctx)

	held, _ := first.Lock(ctx, "db/migrate")
	_, err = second.TryLock(ctx, "db/migrate")
	fmt.Println("others wait:", errors.Is(err, client.ErrNotAcquired))

	// The work ends with the lock, and the resource checks the token.
	err = migrate(held.Context(), held.Token())
	fmt.Println("lost:", errors.Is(context.Cause(held.Context()), client.ErrLost), err)
	_ = held.Unlock(ctx)

	next, _ := second.Lock(ctx, "db/migrate")
	fmt.Println("greater token:", next.Token() > held.Token())

	// Output:
	// others wait: true
	// lost: false <nil>
	// greater token: true
}

func migrate(context.Context, fence.Token) error { return nil }

// Elect a leader, whose address all others can read.
func ExampleSession_Campaign() {
	address, stop := client.StartPeer()
	defer stop()
	c, err := client.New(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	session, _ := c.Locks().Session(ctx)
	defer session.Close(ctx)
	leads, err := session.Campaign(ctx, "scheduler", []byte("10.0.0.7:9000"))
	if err != nil {
		fmt.Println(err)
		return
	}
	leader, _ := c.Locks().Leader(ctx, "scheduler")
	fmt.Printf("%s\n", leader.Value)
	fmt.Println(leads.Resign(ctx))

	// Output:
	// 10.0.0.7:9000
	// <nil>
}

// Write a key, read it, and change it only if nobody else did meanwhile.
func ExampleClient_KV() {
	address, stop := client.StartPeer()
	defer stop()
	c, err := client.New(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx, kv := context.Background(), c.KV()
	_, err = kv.Get(ctx, "app/colour")
	fmt.Println("absent:", errors.Is(err, fault.NotFound))

	_, _ = kv.Put(ctx, "app/colour", []byte("blue"))
	seen, _ := kv.Get(ctx, "app/colour")
	_, _ = kv.Put(ctx, "app/colour", []byte("red")) // somebody else
	unchanged := client.WhileAt("app/colour", seen.ModRevision)
	result, _ := kv.Txn().If(unchanged).Then(client.Put("app/colour", []byte("green"))).Commit(ctx)
	fmt.Println("changed:", result.Unmet == nil)

	n, _ := kv.Delete(ctx, client.Under("app/"))
	fmt.Println("deleted:", n)

	// Output:
	// absent: true
	// changed: false
	// deleted: 1
}

// Create a key only once, whoever comes first.
func ExampleKV_Txn() {
	address, stop := client.StartPeer()
	defer stop()
	c, err := client.New(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for _, host := range []string{"a", "b"} {
		mine := client.Put("config/owner", []byte(host))
		result, err := c.KV().Txn().If(client.WhileAt("config/owner", 0)).Then(mine).Commit(context.Background())
		fmt.Println(host, result.Unmet == nil, err)
	}

	// Output:
	// a true <nil>
	// b false <nil>
}

// Watch keys, and resume after a restart of this program.
func ExampleKV_Watch() {
	address, stop := client.StartPeer()
	defer stop()
	c, err := client.New(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	for _, job := range []string{"jobs/1", "jobs/2"} {
		if _, err := c.KV().Put(ctx, job, []byte("new")); err != nil {
			fmt.Println(err)
			return
		}
	}

	next := client.Revision(1) // from storage
	for batch, err := range c.KV().Watch(ctx, client.Watch{Span: client.Under("jobs/"), From: next}) {
		var past *client.Compacted
		switch {
		case errors.As(err, &past): // list the keys, and watch from the next revision
			return
		case err != nil:
			return
		}
		for _, e := range batch.Events {
			fmt.Println(e.Key, e.Deletes())
			if e.Key == "jobs/2" {
				return // a real program goes on
			}
		}
		next = batch.Next // store it together with the effects of the events
	}

	// Output:
	// jobs/1 false
	// jobs/2 false
}
