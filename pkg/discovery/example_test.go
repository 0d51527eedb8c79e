package discovery_test

import (
	"context"
	"fmt"
	"os"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// Run the discovery plane in a program: offer a GPU, and find it as others do. A program that joins a network names
// Settings.Peers.
func ExampleStart() {
	dir, err := os.MkdirTemp("", "offers")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	plane, err := discovery.Start(ctx, discovery.Settings{
		Profile: "dev", Dir: dir, Listen: []string{"/ip4/127.0.0.1/tcp/0"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer plane.Close()

	receipt, err := plane.Register(ctx, records.Offer{
		ID: "gpu-1", Metadata: records.Metadata{Type: "compute", Subtype: "gpu", Name: "A GPU at home"},
		Capabilities: &records.Capabilities{Compute: &records.Compute{
			GPUs: []records.GPU{{Model: "RTX 4090", MemoryMB: 24_000}},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(receipt.ID, "is on this peer only:", receipt.Stored.ThisPeerOnly)

	q := query.Query{Type: "compute"}
	q.RequireGPU = true
	answer, err := plane.Query(ctx, q)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range answer.Results {
		fmt.Println(r.Record.Name().ID, r.Record.Name().Provider == plane.Host().ID())
	}

	// Output:
	// gpu-1 is on this peer only: true
	// gpu-1 true
}
