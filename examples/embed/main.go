// Command embed is a peer of a network on one machine, in a program with a libp2p host of its own. It offers a GPU
// beside the daemons of the network, lists what it finds, and says that it stops when it is interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

func main() {
	seed := flag.String("connect", "", "`multiaddr` of a peer of the network, with /p2p/")
	network := flag.String("network", "dev", "`name` of the network")
	dir := flag.String("data", "embedded", "`folder` of this peer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *seed, *network, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, seed, network, dir string) error {
	key, _, err := crypto.GenerateEd25519Key(nil) // a real program keeps its key: the offers belong to it
	if err != nil {
		return err
	}
	h, err := libp2p.New(libp2p.Identity(key), libp2p.NoListenAddrs, libp2p.ProtocolVersion(discovery.Version(network)))
	if err != nil {
		return err
	}
	defer h.Close()
	p, err := discovery.Start(ctx, discovery.Settings{
		Network: network, Profile: "dev", Dir: dir, Host: h, Listen: []string{"/ip4/127.0.0.1/tcp/0"}, Peers: []string{seed},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Joined(ctx); err != nil {
		return err
	}
	receipt, err := p.Register(ctx, records.Offer{
		ID: "embedded-gpu", Metadata: records.Metadata{Type: "compute", Subtype: "gpu", Name: "A GPU of a program"},
		Capabilities: &records.Capabilities{Compute: &records.Compute{CPUCores: 8, MemoryMB: 32_000, GPUs: []records.GPU{{Model: "RTX 4090", MemoryMB: 24_000}}}},
		Pricing:      &records.Pricing{Currency: "USDC", BasePrice: new(0.4), PriceUnit: "per-hour"},
	})
	if err != nil {
		return err
	}
	fmt.Printf("Offered %s, stored on %d of %d peers.\n", receipt.ID, receipt.Stored.On, receipt.Stored.Of)
	answer, err := p.Query(ctx, query.Query{Type: "compute"})
	if err != nil {
		return err
	}
	for _, r := range answer.Results {
		fmt.Printf("Found %s of %s.\n", r.Record.Name().ID, r.Record.Name().Provider)
	}
	fmt.Println("Ctrl-C ends it.")
	<-ctx.Done()
	return nil
}
