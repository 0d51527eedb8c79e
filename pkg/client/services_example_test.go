package client_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/resolver"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Register this program while it runs, and find other services.
func ExampleServices() {
	address, stop := client.StartPeer()
	defer stop()
	c, err := client.New(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close() // deregisters remaining instances
	ctx := context.Background()
	here, err := c.Services().Register(ctx, instance.Registration{
		Key:  instance.Key{Service: "ledger", ID: "ledger-1"},
		Spec: instance.Spec{Host: "10.0.0.7", Port: 8080, Version: "2.1.0", Tags: []string{"v2"}},
	})
	if err != nil {
		fmt.Println(err) // no peer was reachable, or it refused
		return
	}
	defer here.Close(ctx)

	ledgers, err := c.Services().Discover(ctx, instance.Query{Name: instance.Name{Service: "ledger"}})
	if err != nil {
		fmt.Println(err) // the peer is unreachable and has never answered
		return
	}
	if ledgers.Stale {
		fmt.Println("as it was", ledgers.Age, "ago:", ledgers.Reason)
	}
	for _, i := range ledgers.Instances {
		fmt.Println(i.Key.ID, i.Spec.Host, i.Spec.Port)
	}

	// Output: ledger-1 10.0.0.7 8080
}

// Call a service by its name with gRPC.
func Example_resolver() {
	c, err := client.New(client.DefaultAddress)
	if err != nil {
		return
	}
	defer c.Close()
	conn, err := grpc.NewClient("blackhole:///ledger?tag=v2&prefer_zone=eu",
		grpc.WithResolvers(resolver.New(c)), grpc.WithDefaultServiceConfig(resolver.RoundRobin),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return
	}
	defer conn.Close()
}
