package main

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/bench/buyer"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/testnet/market"
	peers "github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	consumers = 64 // peers in this process: one consumer has a bounded rate
	units     = 1000
	sold      = "slots"
	chunk     = 1 << 20 // bytes that are counted as one
	grantTime = time.Hour
)

// trade measures what a seller grants with its ledger in a group of three, and what a connection to its service carries.
func (s *session) trade(ctx context.Context) error {
	n, err := s.network(ctx, members)
	if err != nil {
		return err
	}
	defer n.Stop()
	offer := market.Plain(sold, 1)
	offer.Metadata.Endpoints, offer.Metadata.Access = nil, records.AccessPeer
	offer.Metadata.Stock = &records.Stock{Unit: "slot", Total: units, MaxTTL: uint32(grantTime.Seconds()), MaxPerConsumer: units}
	receipt, err := n.Peers[0].Offers().Register(ctx, offer)
	if err != nil {
		return err
	}
	if err := s.grants(ctx, n, receipt.Key); err != nil {
		return err
	}
	return s.carried(ctx, n, receipt.Key)
}

// grants measures reservations that are given back at once, of peers that share this process.
func (s *session) grants(ctx context.Context, n *peers.Network, key string) (err error) {
	status, err := n.Peers[0].Status(ctx)
	if err != nil {
		return err
	}
	at := peer.AddrInfo{ID: n.Peers[0].ID}
	for _, text := range n.Peers[0].Listen {
		address, err := multiaddr.NewMultiaddr(text)
		if err != nil {
			return fault.As("bench.grants", fault.Internal, err)
		}
		at.Addrs = append(at.Addrs, address)
	}
	workers := make([]worker, consumers)
	for i := range workers {
		b, err := buyer.New(ctx, network.Name(status.Network), filepath.Join(s.scratch, "buyer-"+strconv.Itoa(i)), at)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		workers[i] = func(ctx context.Context) (int, error) { return 1, b.Cycle(ctx, key) }
	}
	s.table("Reservation and release at one seller with a group of three; each is two commits")
	return s.compare(ctx, task{"reserve and release", consumers, processes(n), func(ctx context.Context, _ int) (sample, error) {
		return closed(ctx, s.duration, workers), ctx.Err()
	}})
}

// carried compares a connection through two peers with one that goes to the service itself.
func (s *session) carried(ctx context.Context, n *peers.Network, key string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fault.As("bench.carried", fault.Unavailable, err)
	}
	defer l.Close()
	go pour(l)
	if err := n.Peers[0].Offers().Serve(ctx, sold, l.Addr().String()); err != nil {
		return err
	}
	g, err := n.Peers[1].Offers().Reserve(ctx, client.Reservation{Key: key})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, state, err := n.Peers[1].Offers().Connect(ctx, g, "127.0.0.1:0")
	if err != nil {
		return err
	}
	seller := processes(n)[:1]
	through := func(label, address string) task {
		return task{label, 1, nil, func(ctx context.Context, _ int) (sample, error) {
			c, err := net.Dial("tcp", address)
			if err != nil {
				return sample{}, fault.As("bench.carried", fault.Unavailable, err)
			}
			defer c.Close()
			buf := make([]byte, chunk)
			before := spent(seller)
			got := closed(ctx, s.duration, []worker{func(context.Context) (int, error) {
				_, err := io.ReadFull(c, buf)
				return 1, err
			}})
			got.Extra = map[string]float64{"seconds of the seller's processor a GiB": (spent(seller) - before).Seconds() / float64(max(got.Count, 1)) * (1 << 30) / chunk}
			return got, ctx.Err()
		}}
	}
	s.table("MiB of one TCP connection, through the peers of buyer and seller, beside the service itself")
	return s.compare(ctx, through("through two peers", state.Listen), through("direct", l.Addr().String()))
}

// pour sends to each connection until it closes, or the listener does.
func pour(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			buf := make([]byte, chunk)
			for err := error(nil); err == nil; {
				_, err = c.Write(buf)
			}
		}()
	}
}

func processes(n *peers.Network) (all []*process.Process) {
	for _, p := range n.Peers {
		all = append(all, p.Process)
	}
	return all
}
