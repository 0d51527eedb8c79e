package flood

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	keeperv1 "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
	tradev1 "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
	"github.com/blackhole/blackhole/testnet/await"
)

// kindOf draws a type that honest buyers ask for.
func kindOf(i int) string { return []string{kind, "goods", "shop"}[i%3] }

// bare offers nothing to call, at the best price.
func bare(i int) records.Offer {
	o := plain(fmt.Sprintf("bare-%d", i), kindOf(i))
	price := 0.01
	o.Pricing = &records.Pricing{Currency: "USDC", BasePrice: &price, PriceUnit: "per-hour"}
	o.Metadata.Stock = &records.Stock{Unit: "slot", Total: 100}
	o.Metadata.Access = records.AccessPeer
	return o
}

// stuffed has every word that a buyer may look for.
func stuffed(i int) records.Offer {
	o := plain(fmt.Sprintf("stuffed-%d", i), kindOf(i))
	o.Metadata.Endpoints = []string{"https://stuffed.example.com"}
	o.Metadata.Description = strings.TrimSpace(strings.Repeat("cheap best gpu goods shop slot berlin secure trusted ", 18))
	return o
}

// plain is an offer at the place of the honest ones, without claims of health.
func plain(id, of string) records.Offer {
	lat, lon := latitude, longitude
	o := records.Offer{
		ID: id, Metadata: records.Metadata{Type: of, Name: id}, Location: &records.Location{Latitude: &lat, Longitude: &lon},
	}
	if of == kind {
		o.Capabilities = &records.Capabilities{Compute: &records.Compute{CPUCores: 64}}
	}
	return o
}

// facades sell at endpoints that answer to some address prefixes alone, as to witnesses. Their peers are in the DHT.
func facades(ctx context.Context, h *hostile) {
	key, err := h.settle(ctx)
	if err != nil {
		h.tally.send(1, "it does not join: "+err.Error())
		return
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(h.from, 80).String())
	if err != nil {
		h.tally.send(1, "it does not listen")
		return
	}
	server := &http.Server{ReadHeaderTimeout: callLimit, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && from.Addr().Unmap().As4()[1]%2 == 0 {
			return
		}
		panic(http.ErrAbortHandler)
	})}
	var work sync.WaitGroup
	defer work.Wait()
	defer server.Close()
	work.Go(func() { _ = server.Serve(l) })
	p := provider{key: key, offer: func(i int) records.Offer {
		o := plain(fmt.Sprintf("facade-%d", i), "shop")
		o.Metadata.Endpoints = []string{"http://" + h.from.String()}
		return o
	}}
	for ctx.Err() == nil {
		store, err := p.store(h, 3)
		if err == nil {
			err = h.once(ctx, h.keepers(), &keeperv1.Request{Op: &keeperv1.Request_Store{Store: store}}, &keeperv1.Response{})
		}
		h.tally.send(3, because(err))
		if p.made = 0; await.Pause(ctx, time.Minute) != nil {
			return
		}
	}
}

// because is the reason of a failed attempt: empty without one.
func because(err error) string {
	if err == nil {
		return ""
	}
	return short(err)
}

// once makes one request on a stream of its own.
func (h *hostile) once(ctx context.Context, id protocol.ID, req, resp proto.Message) error {
	s, err := h.open(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = s.Reset() }()
	return (&conversation{s, bufio.NewReader(s)}).ask(req, resp)
}

// good draws what some seller sells to strangers, and makes it the target.
func (h *hostile) good() (g Good, ok bool) {
	for range 2 * len(h.order.Goods) {
		g = h.order.Goods[mathrand.IntN(len(h.order.Goods))]
		if to, err := addresses(g.At); err == nil && g.Public {
			h.target = to
			return g, true
		}
	}
	return g, false
}

// hold takes units of what honest sellers sell, in the name of one identity after the other, and never uses them.
func hold(ctx context.Context, h *hostile) {
	id := protocol.ID(h.order.Network.Protocol("trade", "1.0.0"))
	for h.pace.turn(ctx, 1) {
		g, ok := h.good()
		if !ok || h.appear(ctx) != nil {
			h.tally.send(1, "no seller")
			_ = await.Pause(ctx, comesBack)
			continue
		}
		resp := &tradev1.Response{}
		err := h.once(ctx, id, &tradev1.Request{Op: &tradev1.Request_Reserve{Reserve: &api.ReserveRequest{
			Key: g.Key, Units: 1, RequestId: hex.EncodeToString(random(12)), TtlMs: 30_000, Hold: mathrand.IntN(2) == 0,
		}}}, resp)
		if err == nil {
			h.tally.send(1, reason(resp.Refusal))
			continue
		}
		h.tally.send(1, short(err))
	}
}

// steal opens streams to what sellers serve, without a grant: with tokens that others have, and with none.
func steal(ctx context.Context, h *hostile) {
	id := protocol.ID(h.order.Network.Protocol("access", "1.0.0"))
	for i := 0; h.pace.turn(ctx, 1); i++ {
		_, ok := h.good()
		if !ok || i%handshakesOfOne == 0 && h.appear(ctx) != nil || h.arrive(ctx) != nil {
			h.tally.send(1, "no seller")
			_ = await.Pause(ctx, comesBack)
			continue
		}
		s, err := h.open(ctx, id)
		if err != nil {
			h.tally.send(1, "stream: "+short(err))
			continue
		}
		c := &conversation{s, bufio.NewReader(s)}
		token := uint64(i) // those of a young provider are small
		if i%3 == 0 {
			token = mathrand.Uint64() >> 12
		}
		resp := &tradev1.OpenResponse{}
		err = c.ask(&tradev1.OpenRequest{Token: token}, resp)
		if err == nil && resp.Refusal == nil {
			buf := make([]byte, 1<<16)
			n, _ := c.r.Read(buf)
			h.tally.steal(int64(n))
		}
		h.tally.send(1, refusalOr(resp.Refusal != nil, err))
		_ = s.Reset()
	}
}

func refusalOr(refused bool, err error) string {
	if refused {
		return "refused"
	}
	return because(err)
}

// squat takes places of a relay, one identity after the other, and keeps them.
func squat(ctx context.Context, h *hostile) {
	var kept held
	defer func() { kept.close() }()
	for h.pace.turn(ctx, 1) {
		if err := h.appear(ctx); err != nil {
			h.tally.send(1, "connection: "+short(err))
			continue
		}
		limited, cancel := context.WithTimeout(ctx, callLimit)
		_, err := client.Reserve(limited, h.host, peer.AddrInfo{ID: h.target.ID})
		cancel()
		h.tally.send(1, because(err))
		if err == nil {
			kept.keep(h.host)
			h.host = nil
		}
	}
}

// deaf asks for much and reads nothing of it.
func deaf(ctx context.Context, h *hostile) {
	id, cells := h.keepers(), hotCells()
	for h.await(ctx) {
		var silent held
		for h.host.Network().Connectedness(h.target.ID) == network.Connected && h.pace.turn(ctx, 1) {
			s, err := h.open(ctx, id)
			if err == nil {
				err = h.send(s, hotQuery(cells[mathrand.IntN(len(cells))], mathrand.Float64()))
			}
			h.tally.send(1, because(err))
			if err == nil {
				silent.keep(s)
			}
		}
		silent.close()
		if await.Pause(ctx, comesBack) != nil {
			return
		}
	}
}
